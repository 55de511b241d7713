"""The reference executor: a model's graph run op by op in torch float32, on any machine, slowly.

It is what every other target is compared with. Weights stream from the checkpoint by row slices, so that it
needs memory for the activations of one chunk and the KV of one sequence, not for the model. Positions
continue across chunks through granules of 128 tokens, as in the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ....plans.layout import GRANULE_TOKENS, Dtype
from ...checkpoint.spec import ModelSpec, TensorSource, row_spans
from ...graph.decoder import INVERSE_FREQUENCY, decoder
from ...graph.graph import Graph, Kind, Op
from ...graph.ops import REGISTRY
from ...graph.ops.definition import Call, Matrix, Values
from ...graph.rope import rope_frequencies
from ...graph.verify import verify
from ...passes.fuse import fuse

ROWS_MAX = 4096  # most rows of a chunk: bounds activations

WeightHook = Callable[[str, NDArray[np.float32]], NDArray[np.float32]]
Observer = Callable[[Op, Values], None]


@dataclass(slots=True)
class RunningSequence:
    """One token sequence in progress: its length, caches by tensor name, and its granule table (1, granules)
    int64.

    keep: whether caches outlive the chunk that wrote them; a sequence that runs as one chunk needs none
    afterwards.
    """

    granules: torch.Tensor
    keep: bool
    length: int = 0
    caches: dict[str, torch.Tensor] = field(default_factory=dict)


class Weights:
    """Values of a graph's weights, read from a checkpoint by row slices and passed through a hook."""

    def __init__(self, spec: ModelSpec, source: TensorSource, hook: WeightHook | None, cache: bool) -> None:
        self._source, self._hook = source, hook
        self._frequencies = rope_frequencies(spec.rope, spec.context).inverse_frequency
        self._slices: dict[tuple[str, int, int], torch.Tensor] | None = {} if cache else None

    def _read(self, name: str, begin: int, end: int) -> torch.Tensor:
        key = (name, begin, end)
        if self._slices is not None and key in self._slices:
            return self._slices[key]
        rows = self._source.read(name, begin, end)
        values = torch.from_numpy(np.array(self._hook(name, rows) if self._hook else rows, np.float32))
        if self._slices is not None:
            self._slices[key] = values
        return values

    def vector(self, name: str, sources: Sequence[str]) -> torch.Tensor:
        """A norm, bias or table, (n,) float32. The hook is not asked: these stay float32 in every plan."""
        if name == INVERSE_FREQUENCY:
            return torch.from_numpy(self._frequencies)
        return torch.from_numpy(
            np.concatenate([self._source.read(part) for part in sources]).astype(np.float32)
        )

    def matrix(self, shape: tuple[int, ...], sources: Sequence[str]) -> Matrix:
        """The rows of `sources`, one after the other."""

        def read(begin: int, end: int) -> torch.Tensor:
            parts = [self._read(*span) for span in row_spans(self._source, sources, begin, end)]
            return torch.cat(parts) if len(parts) > 1 else parts[0]

        return Matrix((shape[0], shape[1]), read)


class Reference:
    """Runs a model's graph. `kv` rounds the cache (F32: not); `fused` runs the ops that targets lower.

    weights: called with a canonical name and rows (n, K) of a matrix, returns what to multiply with: a weight
    format's rounding. It must treat each row by itself, since slices differ from call to call. cache: keep
    what was read, for repeated runs of a model that fits.
    """

    def __init__(
        self, spec: ModelSpec, source: TensorSource, kv: Dtype = Dtype.F32, fused: bool = False,
        weights: WeightHook | None = None, cache: bool = False,
    ) -> None:  # fmt: skip
        self.spec = spec
        graphs = decoder(spec, ROWS_MAX, ROWS_MAX, kv)
        self.body, self.head = (fuse(graph) for graph in graphs) if fused else graphs
        for graph in (self.body, self.head):
            verify(graph)
        self._kv = kv
        self._weights = Weights(spec, source, weights, cache)

    def begin(self, tokens_max: int, keep: bool = True) -> RunningSequence:
        """An empty sequence with room for `tokens_max` tokens."""
        granules = -(-tokens_max // GRANULE_TOKENS)
        # Descending granules: a table that is the identity would hide a mistake in its use.
        return RunningSequence(torch.arange(granules - 1, -1, -1, dtype=torch.int64)[None], keep)

    def forward(self, tokens: Sequence[int], chunk: int = 0) -> torch.Tensor:
        """Logits after every token: (T, V) float32. chunk: rows of a step, 0 for as many as fit."""
        return torch.cat(list(self.stream(tokens, chunk)))

    def stream(
        self, tokens: Sequence[int], chunk: int = 0, observe: Observer | None = None
    ) -> Iterator[torch.Tensor]:
        """Logits chunk by chunk, (rows, V) float32 each, so that the caller need not hold all of them."""
        chunk = min(chunk or ROWS_MAX, ROWS_MAX)
        state = self.begin(len(tokens), keep=len(tokens) > chunk)
        for first in range(0, len(tokens), chunk):
            yield self.step(state, tokens[first : first + chunk], observe)

    def step(
        self, state: RunningSequence, tokens: Sequence[int], observe: Observer | None = None
    ) -> torch.Tensor:
        """Appends `tokens` to the sequence; logits after each of them, (n, V) float32."""
        rows = len(tokens)
        hidden = self.hidden(state, tokens, observe)
        index = torch.arange(rows, dtype=torch.int64)
        values = {"hidden": hidden, "head_rows": index, "head_positions": index + state.length - rows + 1}
        stop = next(i for i, op in enumerate(self.head.ops) if op.kind == "sample")
        return self._run(self.head, values, rows, state, observe, stop)["logits"]

    def hidden(
        self, state: RunningSequence, tokens: Sequence[int], observe: Observer | None = None
    ) -> torch.Tensor:
        """Appends `tokens` to the sequence; the residual stream after the last layer, (n, H) float32."""
        values = self._begin_step(state, tokens)
        out = self._run(self.body, values, len(tokens), state, observe, len(self.body.ops))["hidden"]
        state.length += len(tokens)
        return out

    def stop_after(self, tokens: Sequence[int], index: int) -> Values:
        """Outputs by role of body op `index` (0 is the first) when `tokens` run as one chunk; caches as
        pools.
        """
        if not 0 <= index < len(self.body.ops):
            raise IndexError(f"op {index} is not in the body; it has {len(self.body.ops)} ops")
        state, found = self.begin(len(tokens)), {}
        at = iter(range(len(self.body.ops)))

        def observe(op: Op, outputs: Values) -> None:
            if next(at) == index:
                found.update(outputs)

        self._run(self.body, self._begin_step(state, tokens), len(tokens), state, observe, index + 1)
        return found

    def _begin_step(self, state: RunningSequence, tokens: Sequence[int]) -> Values:
        rows, capacity = len(tokens), state.granules.shape[1] * GRANULE_TOKENS
        if not 1 <= rows <= ROWS_MAX:
            raise ValueError(f"a step of {rows} tokens; 1 to {ROWS_MAX} are allowed")
        if state.length + rows > capacity:
            raise ValueError(f"{state.length + rows} tokens exceed the sequence's capacity of {capacity}")
        if not all(0 <= token < self.spec.vocabulary for token in tokens):
            raise ValueError(f"a token id is not below the vocabulary of {self.spec.vocabulary}")
        return {
            "row_tokens": torch.tensor(tokens, dtype=torch.int64),
            "row_positions": torch.arange(state.length, state.length + rows, dtype=torch.int64),
            "row_leases": torch.zeros(rows, dtype=torch.int64),
        }

    @torch.no_grad()
    def _run(
        self,
        graph: Graph,
        values: Values,
        rows: int,
        state: RunningSequence,
        observe: Observer | None,
        stop: int,
    ) -> Values:
        """Runs ops [0, stop); values are dropped after their last reader."""
        last = {name: index for index, op in enumerate(graph.ops) for name in op.inputs.values()}
        for index, op in enumerate(graph.ops[:stop]):
            outputs = REGISTRY[op.kind].reference(self._call(graph, op, values, rows, state))
            if observe is not None:
                observe(op, outputs)
            for role, name in op.outputs.items():
                if graph.tensors[name].kind != Kind.KV:
                    values[name] = outputs[role]
            for name in (*op.inputs.values(), *op.outputs.values()):
                if last.get(name, index) != index:
                    continue
                if graph.tensors[name].kind == Kind.ACTIVATION:
                    values.pop(name, None)
                elif not state.keep:
                    state.caches.pop(name, None)
        return values

    def _call(self, graph: Graph, op: Op, values: Values, rows: int, state: RunningSequence) -> Call:
        inputs: Values = {}
        matrices: dict[str, Matrix] = {}
        for role, name in op.inputs.items():
            tensor = graph.tensors[name]
            if tensor.kind == Kind.WEIGHT and len(tensor.shape) == 2:
                matrices[role] = self._weights.matrix(tensor.shape, tensor.sources)
            elif tensor.kind == Kind.WEIGHT:
                inputs[role] = self._weights.vector(name, tensor.sources)
            elif tensor.kind != Kind.KV:
                inputs[role] = values[name]
        caches = {
            role: self._cache(graph, name, state)
            for role, name in {**op.inputs, **op.outputs}.items()
            if graph.tensors[name].kind == Kind.KV
        }
        return Call(rows, inputs, op.attributes, matrices, caches, state.granules, self._kv)

    def _cache(self, graph: Graph, name: str, state: RunningSequence) -> torch.Tensor:
        if name not in state.caches:
            shape: tuple[int, ...] = (state.granules.shape[1], *graph.tensors[name].shape)
            state.caches[name] = torch.zeros(shape, dtype=torch.float32)
        return state.caches[name]
