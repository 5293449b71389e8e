"""Log-probabilities of prompt and output tokens, from the rows that the target's pass gave for them anyway."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.models.logits import Logits
from outrider.outputs import TokenLogprobs
from outrider.request import Request
from outrider.request_state import RequestState
from outrider.sampling.logprobs import report_of_logits


def output_logprobs(
    request: RequestState, token_ids: Sequence[int], logits: Logits, nodes: Sequence[int]
) -> list[TokenLogprobs]:
    """For each token that the step emits, by its row of ``logits`` [1 + drafts, vocab]; empty unless asked for.

    ``nodes`` are the accepted drafts; the first token's row is 0, each other's the one after the draft before it. That
    is the target's distribution at the token's place, be it accepted, recovered or bonus: never a residual's.
    """
    num_top = request.params.logprobs
    if num_top is None:
        return []
    return [
        request.sampler.report(logits.row(row), token_id, num_top, request.token_ids, token_ids[:place])
        for place, (row, token_id) in enumerate(zip((0, *(node + 1 for node in nodes)), token_ids, strict=False))
    ]


def num_prompt_rows(request: Request, num_tokens: int) -> int:
    """Rows that are wanted of the ``num_tokens`` committed tokens to be computed, the last one's included."""
    wanted = request.params.prompt_logprobs is not None
    return num_tokens if wanted and len(request.prompt_logprobs) < len(request.prompt_token_ids) else 0


def record_prompt_logprobs(request: Request, logits: Logits) -> None:
    """``logits`` [tokens, vocab] of the request's tokens from ``num_computed_tokens`` on, each scoring the next token.

    Tokens recorded before the request was preempted are passed over, as are output tokens.
    """
    num_top = request.params.prompt_logprobs
    if num_top is None:
        return
    for row, index in enumerate(range(request.num_computed_tokens + 1, request.num_computed_tokens + 1 + len(logits))):
        if index == len(request.prompt_logprobs) and index < len(request.prompt_token_ids):
            token_id = request.prompt_token_ids[index]
            request.prompt_logprobs.append(report_of_logits(logits.row(row), token_id, num_top))
