"""The expected results of sampling and verification, by formula, in plain NumPy and float64.

This module shares no code with the functions that it checks. A distribution over token strings is a dict from tuples of
token ids to probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.sampling_params import SamplingParams

Row = NDArray[np.floating[Any]]
Table = Callable[[tuple[int, ...]], Row]
"""A model of known distribution: from all tokens before a position to the probabilities [vocab] there."""

Outcome = TypeVar("Outcome")


def edited_logits(
    logits: NDArray[np.floating],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    end_token_ids: frozenset[int] = frozenset(),
) -> Row:
    """Edited logits [vocab] before temperature, computed per token from the definitions. ``output`` includes drafts."""
    row = np.array(logits, dtype=np.float64)
    before = [*prompt, *output]
    for token_id in range(row.size):
        score, times = row[token_id], list(output).count(token_id)
        score += params.logit_bias.get(token_id, 0.0)
        if token_id in before:
            score = score / params.repetition_penalty if score > 0.0 else score * params.repetition_penalty
        score -= params.frequency_penalty * times + (params.presence_penalty if times else 0.0)
        allowed = params.allowed_token_ids is None or token_id in params.allowed_token_ids
        for sequence in params.bad_token_ids:
            completed = (*before, token_id)[-len(sequence) :] == sequence
            allowed = allowed and not completed
        if token_id in end_token_ids and len(output) < params.min_tokens:
            allowed = False
        row[token_id] = score if allowed else -np.inf
    for processor in params.logits_processors:
        row = np.asarray(processor(tuple(before), row), dtype=np.float64)
    return row


def processed_probs(logits: NDArray[np.floating], params: SamplingParams) -> Row:
    """Probabilities [vocab] after temperature and truncation, by their definitions, with full sorts."""
    scores = np.asarray(logits, dtype=np.float64)
    order = np.lexsort((np.arange(scores.size), -scores))
    if params.temperature == 0.0:
        return np.asarray(np.eye(scores.size)[order[0]])
    probs = np.exp((scores[order] - scores[order[0]]) / params.temperature)
    if params.top_k > 0:
        probs[params.top_k :] = 0.0
    probs /= probs.sum()
    before = np.concatenate(([0.0], np.cumsum(probs)[:-1]))  # mass of the tokens more probable than this one
    if params.top_p < 1.0:
        probs[before >= params.top_p] = 0.0
    probs[probs < params.min_p * probs[0]] = 0.0
    if params.typical_p < 1.0:
        probs /= probs.sum()
        held = np.flatnonzero(probs)
        held = held[np.argsort(order[held])]  # ties go to the lowest id
        surprisal = -np.log(probs[held])
        ranked = held[np.argsort(np.abs(surprisal - (probs[held] * surprisal).sum()), kind="stable")]
        mass = np.concatenate(([0.0], np.cumsum(probs[ranked])[:-1]))
        probs[ranked[mass >= params.typical_p]] = 0.0
    result: Row = np.empty_like(probs)
    result[order] = probs / probs.sum()
    return result


def plain_distribution(
    table: Table, context: tuple[int, ...], num_tokens: int, end_token_ids: frozenset[int] = frozenset()
) -> dict[tuple[int, ...], float]:
    """The joint distribution of the next ``num_tokens`` tokens under ``table``. A string ends at an end token."""
    if num_tokens == 0:
        return {(): 1.0}
    strings: dict[tuple[int, ...], float] = {}
    for token_id, prob in enumerate(table(context)):
        if prob <= 0.0:
            continue
        left = 0 if token_id in end_token_ids else num_tokens - 1
        for rest, rest_prob in plain_distribution(table, (*context, token_id), left, end_token_ids).items():
            strings[(token_id, *rest)] = float(prob) * rest_prob
    return strings


def total_variation(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Half the sum of absolute differences. An outcome that one distribution lacks has probability 0 there."""
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())
