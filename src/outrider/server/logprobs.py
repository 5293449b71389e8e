"""Log-probabilities in the three forms that clients know. Tokens are shown as the text that their bytes are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.models.tokenizer import Tokenizer
from outrider.outputs import TokenLogprobs

_LEAST = -9999.0
"""Stands for minus infinity, which JSON has no word for."""


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)


def token_string(tokenizer: Tokenizer, token_id: int) -> str:
    """Text of one token by itself; part of a character shows as U+FFFD."""
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    content = [
        entry(each.token_id, each.logprob) | {"top_logprobs": [entry(*other) for other in each.top]}
        for each in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None], token_ids: Sequence[int], offsets: Sequence[int]
) -> dict[str, Any]:
    """``choices[].logprobs`` of a completion; ``offsets`` are where each token's text begins, in characters.

    ``top_logprobs`` always has the token itself too. Of tokens whose texts look the same the most probable is listed.
    """
    tops: list[dict[str, float] | None] = []
    for each in logprobs:
        if each is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for token_id, logprob in (*each.top, (each.token_id, each.logprob)):
            text = token_string(tokenizer, token_id)
            top[text] = max(_finite(logprob), top.get(text, _LEAST))
        tops.append(top)
    return {
        "tokens": [token_string(tokenizer, token_id) for token_id in token_ids],
        "token_logprobs": [None if each is None else _finite(each.logprob) for each in logprobs],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def prompt_logprobs(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None] | None
) -> list[dict[str, Any] | None] | None:
    """For each prompt token, {token id: {logprob, rank, decoded_token}}; None for the first."""
    if logprobs is None:
        return None
    entries: list[dict[str, Any] | None] = []
    for each in logprobs:
        if each is None:
            entries.append(None)
            continue
        shown: dict[str, Any] = {}
        for rank, (token_id, logprob) in enumerate((*each.top, (each.token_id, each.logprob)), start=1):
            own = each.rank if token_id == each.token_id else rank
            shown[str(token_id)] = {
                "logprob": _finite(logprob),
                "rank": own,
                "decoded_token": token_string(tokenizer, token_id),
            }
        entries.append(shown)
    return entries
