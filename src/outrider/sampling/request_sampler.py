"""The distribution of one request at any position, from its sampling parameters and its history.

A row of logits is edited in this order: grammar, allowed and bad tokens, logit bias, penalties, min_tokens, the
request's own processors. Then ``probabilities`` is applied. Edits that depend on earlier tokens are evaluated at each
position with the drafts before it. So each row has the distribution of plain decoding, and verifiers, drafters and
log-probabilities get the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequestError
from outrider.outputs import TokenLogprobs
from outrider.sampling.draw import draw_token
from outrider.sampling.grammar import Grammar
from outrider.sampling.history import History
from outrider.sampling.logprobs import report, report_of_logits
from outrider.sampling.noise import Noise, Weights
from outrider.sampling.probabilities import greedy_token, probabilities
from outrider.sampling_params import LogitsProcessor, SamplingParams


class RequestSampler:
    """Maps a row of logits and the tokens before it to the distribution of the next token.

    ``edits`` is False if no parameter changes logits before temperature; callers can then use the logits directly.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        *,
        vocab_size: int,
        end_token_ids: Iterable[int] = (),
        bad_sequences: Iterable[Sequence[int]] = (),
        grammar: Grammar | None = None,
    ) -> None:
        """Prepare the sampler of one request.

        ``bad_sequences`` are the token sequences of ``params.bad_words``. min_tokens masks ``end_token_ids``.
        ``grammar`` is the new grammar of ``params.structured_outputs``.

        Raises ``InvalidRequestError`` if an id is not in the vocabulary, or if no token is allowed at the start.
        """
        bad = [*params.bad_token_ids, *map(tuple, bad_sequences)]
        _check_ids("logit_bias", params.logit_bias, vocab_size)
        _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
        _check_ids("bad_token_ids", (token_id for sequence in bad for token_id in sequence), vocab_size)
        self.params = params
        self.vocab_size = vocab_size
        self._num_prompt = len(prompt_token_ids)
        self._grammar = grammar
        self._forbidden = _forbidden(params, [sequence[0] for sequence in bad if len(sequence) == 1], vocab_size)
        self._bad_sequences = [sequence for sequence in bad if len(sequence) > 1]
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self._biases = np.array(list(params.logit_bias.values()), dtype=np.float64)
        ends = sorted(token_id for token_id in end_token_ids if 0 <= token_id < vocab_size)
        self._end_ids = np.array(ends if params.min_tokens else [], dtype=np.int64)
        penalised = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1.0, 0.0, 0.0)
        self._history = History(prompt_token_ids) if penalised else None
        if self._forbidden is not None and np.delete(self._forbidden, self._end_ids).all():
            raise InvalidRequestError(
                "allowed_token_ids, bad_token_ids and min_tokens leave no token that is allowed; allow at least one",
                param="allowed_token_ids",
            )
        self.edits = bool(
            grammar is not None
            or self._forbidden is not None
            or self._bad_sequences
            or len(self._bias_ids)
            or penalised
            or len(self._end_ids)
            or params.logits_processors
        )

    def probs(self, logits: Weights, committed: Sequence[int], drafted: Sequence[int] = ()) -> Weights:
        """The distribution [vocab] of the token after ``committed`` (prompt and output) and ``drafted``.

        Raises ``ValueError`` if ``logits`` [vocab] are not finite, if the edits rule out every token, or if a processor
        fails.
        """
        return probabilities(self.edited(logits, committed, drafted), self.params)

    def draw(
        self, logits: Weights, committed: Sequence[int], drafted: Sequence[int], noise: Noise, position: int
    ) -> int:
        """A token drawn from ``probs`` with the TARGET noise of ``position``; raises ``ValueError`` as it does."""
        return draw_token(self.edited(logits, committed, drafted), self.params, noise, position)

    def greedy_token(self, logits: Weights, committed: Sequence[int], drafted: Sequence[int] = ()) -> int:
        """The most probable token after the edits, the lowest id among equals; raises ``ValueError`` as ``probs``."""
        return greedy_token(self.edited(logits, committed, drafted))

    def report(
        self, logits: Weights, token_id: int, num_top: int, committed: Sequence[int], drafted: Sequence[int] = ()
    ) -> TokenLogprobs:
        """Log-probabilities of ``token_id`` and of the ``num_top`` most probable tokens, by ``params.logprobs_mode``.

        ``processed`` log-probabilities are those of ``probs``. A greedy distribution has a single token, so greedy
        requests get the log-softmax of the edited logits instead. Raises ``ValueError`` as ``probs`` does.
        """
        if self.params.logprobs_mode == "raw":
            return report_of_logits(logits, token_id, num_top)
        if self.params.greedy:
            return report_of_logits(self.edited(logits, committed, drafted), token_id, num_top)
        with np.errstate(divide="ignore"):
            return report(np.log(self.probs(logits, committed, drafted)), token_id, num_top)

    def edited(self, logits: Weights, committed: Sequence[int], drafted: Sequence[int] = ()) -> Weights:
        """The edited logits [vocab] before temperature, in float64; ``logits`` itself if ``edits`` is False."""
        if not self.edits:
            return logits
        greedy_token(logits)  # report a NaN before a mask hides it
        params = self.params
        row: Weights = logits.astype(np.float64)
        if self._grammar is not None:
            allowed = self._grammar.allowed(committed[self._num_prompt :], drafted)
            if allowed is not None:
                row[~allowed[: self.vocab_size]] = -np.inf
        if self._forbidden is not None:
            row[self._forbidden] = -np.inf
        for *before, last in self._bad_sequences:
            if _ends_with(committed, drafted, before):
                row[last] = -np.inf
        row[self._bias_ids] += self._biases
        if self._history is not None:
            self._history.move_to(committed, drafted)
            _penalise(row, self._history, params)
        if len(committed) + len(drafted) - self._num_prompt < params.min_tokens:
            row[self._end_ids] = -np.inf
        for processor in params.logits_processors:
            row = _processed(processor, (*committed, *drafted), row)
        if self._grammar is not None and np.isneginf(row).all():
            raise ValueError(
                "no token is allowed here: the grammar, min_tokens, allowed and bad tokens of this request forbid all"
            )
        return row

    def num_legal(self, committed: Sequence[int], drafted: Sequence[int]) -> int:
        """Length of the longest prefix of ``drafted`` that the grammar allows; all of it without a grammar."""
        if self._grammar is None:
            return len(drafted)
        return self._grammar.num_legal(committed[self._num_prompt :], drafted)


def _check_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"sampling parameter {name} holds token id {token_id}, but ids go from 0 to {vocab_size - 1}",
                param=name,
            )


def _forbidden(params: SamplingParams, bad: Sequence[int], vocab_size: int) -> NDArray[np.bool_] | None:
    """The mask [vocab] of tokens that are never allowed; None if there are none."""
    if params.allowed_token_ids is None and not bad:
        return None
    forbidden = np.full(vocab_size, params.allowed_token_ids is not None)
    forbidden[list(params.allowed_token_ids or ())] = False
    forbidden[list(bad)] = True
    return forbidden


def _ends_with(committed: Sequence[int], drafted: Sequence[int], tail: Sequence[int]) -> bool:
    missing = max(len(tail) - len(drafted), 0)
    if missing > len(committed):
        return False
    latest = [*committed[len(committed) - missing :], *drafted[max(len(drafted) - len(tail), 0) :]]
    return latest == list(tail)


def _penalise(row: Weights, history: History, params: SamplingParams) -> None:
    """Penalise ``row`` [vocab] in place.

    Repetition: Keskar et al. 2019, arXiv 1909.05858. Frequency and presence: as OpenAI's API defines them.
    """
    ids, counts, penalty = history.ids, history.counts, params.repetition_penalty
    values = row[ids]
    if penalty != 1.0:
        values = np.where(history.known, np.where(values > 0.0, values / penalty, values * penalty), values)
    values -= params.frequency_penalty * counts
    values -= params.presence_penalty * (counts > 0)
    row[ids] = values


def _processed(processor: LogitsProcessor, token_ids: tuple[int, ...], row: Weights) -> Weights:
    name = getattr(processor, "__name__", type(processor).__name__)
    try:
        result = processor(token_ids, row)
    except Exception as error:
        raise ValueError(f"logits processor {name!r} failed: {type(error).__name__}: {error}") from error
    if result is None:
        raise ValueError(f"logits processor {name!r} returned nothing; it must return the row")
    changed: Weights = np.asarray(result, dtype=row.dtype)
    if changed.shape != row.shape:
        raise ValueError(f"logits processor {name!r} returned shape {changed.shape}, not {row.shape}")
    return changed
