"""sample: a token per row from its logits. The reference is the greedy case: the largest logit, lowest id on
a tie.

logits (head_rows_max, V), requests, positions (head_rows_max,) u32, sampling and token_counts (per request)
-> out_tokens (head_rows_max,), top_tokens and top_logprobs (head_rows_max, 21): entry 0 is the sampled token,
the others the 20 most likely by descending logprob, lowest id on a tie. What a small vocabulary
leaves unused is 0.
"""

from __future__ import annotations

import torch

from ....plans.layout import SAMPLING, TOP_LOGPROBS_MAX, Dtype
from ..graph import Kind
from .definition import Call, Cost, OpDefinition, Result, Signature, Values

IO = (Kind.IO,)


def _shape(signature: Signature) -> dict[str, Result]:
    vocabulary = signature.activation("logits")
    signature.table("requests")
    signature.table("positions")
    signature.state("sampling", Dtype.U8, SAMPLING.bytes)
    signature.state("token_counts", Dtype.U16, vocabulary)
    rows = signature.rows
    return {
        "out_tokens": Result((rows,), (Dtype.U32,), IO),
        "top_tokens": Result((rows, 1 + TOP_LOGPROBS_MAX), (Dtype.U32,), IO),
        "top_logprobs": Result((rows, 1 + TOP_LOGPROBS_MAX), (Dtype.F32,), IO),
    }


def _reference(call: Call) -> Values:
    logits = call.inputs["logits"]
    logprobs = torch.log_softmax(logits.to(torch.float64), dim=-1).to(torch.float32)
    order = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :TOP_LOGPROBS_MAX]
    top_tokens = torch.zeros((call.rows, 1 + TOP_LOGPROBS_MAX), dtype=torch.int64)
    top_logprobs = torch.zeros((call.rows, 1 + TOP_LOGPROBS_MAX), dtype=torch.float32)
    for column, tokens in ((0, order[:, :1]), (1, order)):
        columns = slice(column, column + tokens.shape[1])
        top_tokens[:, columns] = tokens
        top_logprobs[:, columns] = logprobs.gather(1, tokens)
    return {"out_tokens": order[:, 0], "top_tokens": top_tokens, "top_logprobs": top_logprobs}


def _cost(signature: Signature) -> Cost:
    vocabulary = signature.activation("logits")
    return Cost(signature.rows * 4 * vocabulary, 0)


DEFINITION = OpDefinition(
    "sample", ("logits", "requests", "positions", "sampling", "token_counts"),
    ("out_tokens", "top_tokens", "top_logprobs"), _shape, _reference, _cost,
)  # fmt: skip
