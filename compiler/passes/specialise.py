"""Specialise: one graph per bucket. A bucket is a fixed number of rows; a step runs the smallest that fits.

Rows are the first axis of every activation and of nothing else, so specialising is replacing that number.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import Graph, Kind, Tensor


def buckets(rows_max: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to and including `rows_max`, which need not be a power of two."""
    if rows_max < 1:
        raise ValueError(f"rows_max {rows_max} is below 1")
    sizes = [1]
    while sizes[-1] * 2 < rows_max:
        sizes.append(sizes[-1] * 2)
    return (*sizes, rows_max) if sizes[-1] != rows_max else tuple(sizes)


def specialise(graph: Graph, rows: int) -> Graph:
    """The same ops for `rows` rows."""

    def convert(tensor: Tensor) -> Tensor:
        if tensor.kind != Kind.ACTIVATION:
            return tensor
        assert tensor.shape[0] == graph.rows, (
            f"{tensor.name} has {tensor.shape[0]} rows in a graph of {graph.rows}"
        )
        return replace(tensor, shape=(rows, *tensor.shape[1:]))

    return replace(
        graph, rows=rows, tensors={name: convert(tensor) for name, tensor in graph.tensors.items()}
    )
