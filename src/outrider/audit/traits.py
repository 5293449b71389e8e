"""The traits of the audit's cases: settings of a ``Case`` by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.audit.languages import Language
from outrider.sampling.noise import Weights
from outrider.sampling_params import SamplingParams


def _alike(params: SamplingParams) -> dict[str, Any]:
    return {"target_params": params, "draft_params": params}


def _dislike_repeats(token_ids: tuple[int, ...], row: Weights) -> Weights:
    """A custom logits processor that lowers the logits of the last two tokens by 1."""
    for token_id in token_ids[-2:]:
        row[token_id] -= 1.0
    return row


_TRUNCATED = SamplingParams(temperature=0.7, top_k=3, top_p=0.85)
_BIASED = SamplingParams(logit_bias={0: 1.5, 2: -1.0}, bad_token_ids=((1, 2), (0, 0)))
_PENALISED = SamplingParams(repetition_penalty=1.6, frequency_penalty=0.9, presence_penalty=-0.7)
TRAITS: dict[str, dict[str, Any]] = {
    "context-dependent distributions": {},
    "zeros in both distributions": {"zeros": 0.35},
    "draft = target": {"draft_is_target": True},
    "temperature, top-k, top-p": {"target_params": _TRUNCATED, "draft_params": _TRUNCATED},
    "top-k drafts, other temperature": {
        "target_params": SamplingParams(temperature=1.4),
        "draft_params": SamplingParams(temperature=0.8, top_k=2),
    },
    "adaptive K": {"stop_below": 0.35},
    "end token inside the block": {"end_token_ids": frozenset({1})},
    "greedy": {"target_params": SamplingParams(temperature=0.0)},
    "several steps": {"repeat": True},
    "all together": {
        "target_params": SamplingParams(temperature=0.9, top_p=0.9),
        "zeros": 0.2,
        "stop_below": 0.3,
        "end_token_ids": frozenset({2}),
        "repeat": True,
    },
}
PARAMETER_TRAITS: dict[str, dict[str, Any]] = {
    "min-p": _alike(SamplingParams(temperature=1.2, min_p=0.25)),
    "typical": _alike(SamplingParams(typical_p=0.7)),
    "logit bias and bad sequences": _alike(_BIASED),
    "allowed tokens": _alike(SamplingParams(allowed_token_ids=(0, 2))),
    "penalties": _alike(_PENALISED),
    "penalties, several steps": {**_alike(_PENALISED), "repeat": True},
    "min_tokens": {**_alike(SamplingParams(min_tokens=2)), "end_token_ids": frozenset({1})},
    "parameters together": {
        **_alike(
            SamplingParams(
                temperature=0.8,
                top_k=3,
                min_p=0.05,
                repetition_penalty=1.3,
                presence_penalty=0.4,
                logit_bias={1: 0.7},
                min_tokens=1,
            )
        ),
        "stop_below": 0.3,
        "end_token_ids": frozenset({2}),
        "repeat": True,
    },
    "custom processor": _alike(SamplingParams(logits_processors=(_dislike_repeats,))),
}
"""Traits of one sampling parameter or one kind of parameters each. They run for few vocabularies and K."""
ALTERNATING = Language(
    moves=tuple(
        {letter: state for state, letter in enumerate((0, 1, 3, 4), start=1) if state != here} for here in range(5)
    ),
    accepting=frozenset({1}),
)
"""No letter occurs twice in a row, and the text can end only after letter 0. Token 2 is the end token."""
_GRAMMAR: dict[str, Any] = {"language": ALTERNATING, "end_token_ids": frozenset({2})}
_UNAWARE = {**_GRAMMAR, "drafts_within_language": False}
LATER_TRAITS: dict[str, dict[str, Any]] = {
    "temperature": _alike(SamplingParams(temperature=0.5)),
    "top-k": _alike(SamplingParams(top_k=2)),
    "top-p": _alike(SamplingParams(top_p=0.6)),
    "grammar": _GRAMMAR,
    "grammar, drafts without it": _UNAWARE,
    "grammar, several steps": {**_UNAWARE, "repeat": True},
    "grammar, greedy": {**_UNAWARE, "target_params": SamplingParams(temperature=0.0)},
    "grammar that begins inside the block": {**_GRAMMAR, "language": replace(ALTERNATING, after=1)},
    "grammar, adaptive K, parameters": {
        **_UNAWARE,
        **_alike(SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=0.6, logit_bias={1: 0.7}, min_tokens=2)),
        "stop_below": 0.3,
    },
}
"""More traits of parameters, and grammars. The order of all traits fixes the models of each case."""
