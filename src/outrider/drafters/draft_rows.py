"""From a row of a draft model's output to tokens and distributions over the target's vocabulary, as the request wants
them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.base import DraftRequest
from outrider.models.logits import Logits
from outrider.sampling.logprobs import report_of_logits
from outrider.sampling.noise import Weights
from outrider.sampling.probabilities import greedy_token, probabilities


def first_choice(logits: Logits, row: int) -> int:
    """The most probable entry of a row of ``logits``. Raises ``ValueError`` if that is not finite, or one is NaN."""
    entries = logits.argmax(slice(row, row + 1))
    if not entries:
        raise ValueError("the draft model's logits are not finite (NaN or infinity); the model is broken")
    return entries[0]


class DraftRows:
    """``token_ids`` [rows] says for which of the target's ``vocab_size`` tokens each entry of an output row stands."""

    def __init__(
        self,
        token_ids: NDArray[np.int64],
        vocab_size: int,
        *,
        entries: NDArray[np.int64] | None = None,
        draft_ids: NDArray[np.int64] | None = None,
    ) -> None:
        """``entries`` [rows] are the entries of an output row that are used; without, the first ones, in order.

        ``draft_ids`` [rows] are what the draft model calls the tokens; without, it calls them as the target does.
        """
        self._token_ids = token_ids
        self._vocab_size = vocab_size
        self._known_ids = np.zeros(vocab_size, dtype=bool)
        self._known_ids[token_ids] = True
        self._entries = entries
        used = range(len(token_ids)) if entries is None else entries.tolist()
        self._token_of = dict(zip(used, token_ids.tolist(), strict=True))
        self._draft_ids = None if draft_ids is None else dict(zip(token_ids.tolist(), draft_ids.tolist(), strict=True))

    def __contains__(self, token_id: int) -> bool:
        """True if the draft could say the target's ``token_id``."""
        return bool(self._known_ids[token_id])

    def draft_id(self, token_id: int) -> int:
        """What the draft model calls the target's ``token_id``."""
        return token_id if self._draft_ids is None else self._draft_ids[token_id]

    def leaves(self, logits: Logits, row: int) -> bool:
        """True if the most probable of all of the draft's tokens is none that the target has."""
        return self._entries is not None and first_choice(logits, row) not in self._token_of

    def _known(self, logits: Logits, row: int) -> Weights:
        values = logits.row(row)
        return values[: len(self._token_ids)] if self._entries is None else values[self._entries]

    def greedy(self, entry: DraftRequest, logits: Logits, row: int, drafted: Sequence[int]) -> int | None:
        """The most probable token after ``drafted``, from a row of ``logits`` [rows, draft vocab]; None if the draft
        knows none there."""
        if not entry.sampler.edits:
            token_id = self._token_of.get(first_choice(logits, row))
            if token_id is None:  # the draft's own padding, or a token that only it has
                token_id = int(self._token_ids[self._known(logits, row).argmax()])
            return token_id
        edited = self._edited(entry, self._known(logits, row), drafted)
        return None if np.isneginf(edited).all() else greedy_token(edited)

    def best(
        self, entry: DraftRequest, logits: Logits, row: int, drafted: Sequence[int], count: int
    ) -> list[tuple[int, float]]:
        """At most ``count`` tokens after ``drafted``, the most probable first, each with its log-probability."""
        known = self._known(logits, row)
        if not entry.sampler.edits:
            top = report_of_logits(known, 0, min(count, len(known))).top
            return [(int(self._token_ids[place]), logprob) for place, logprob in top]
        edited = self._edited(entry, known, drafted)
        return [] if np.isneginf(edited).all() else list(report_of_logits(edited, 0, count).top)

    def probs(self, entry: DraftRequest, logits: Logits, row: int, drafted: Sequence[int]) -> Weights | None:
        """The draft's distribution [vocab_size] after ``drafted``; None if it knows no token of those that are allowed
        there."""
        known = self._known(logits, row)
        if entry.sampler.edits:
            edited = self._edited(entry, known, drafted)
            return None if np.isneginf(edited).all() else probabilities(edited, entry.request.params)
        probs = np.zeros(self._vocab_size, dtype=np.float64)
        probs[self._token_ids] = probabilities(known, entry.request.params)
        return probs

    def _edited(self, entry: DraftRequest, known: Weights, drafted: Sequence[int]) -> Weights:
        """Logits [vocab_size] as the request edits them; tokens unknown to the draft are out."""
        logits = np.full(self._vocab_size, -np.inf)
        logits[self._token_ids] = known
        return entry.sampler.edited(logits, entry.request.token_ids, drafted)
