"""From a row of a draft model's output to tokens and distributions over the target's vocabulary, as the request wants
them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.drafters.base import DraftRequest
from outrider.ops.native import as_array, max_and_argmax
from outrider.sampling.noise import Weights
from outrider.sampling.probabilities import greedy_token, probabilities


def first_choice(logits: Tensor) -> int:
    """The most probable entry of ``logits`` [1, draft vocab]. Raises ``ValueError`` if one is NaN or infinite."""
    largest, entry = max_and_argmax(logits)
    _check_finite(largest)
    return int(entry)


def _check_finite(largest: Tensor) -> None:
    if not float(largest) < math.inf:  # NaN is not, either
        raise ValueError("the draft model's logits are not finite (NaN or infinity); the model is broken")


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
        self._entries = None if entries is None else torch.from_numpy(entries)
        self._used = frozenset[int]() if entries is None else frozenset(entries.tolist())
        self._draft_ids = None if draft_ids is None else dict(zip(token_ids.tolist(), draft_ids.tolist(), strict=True))

    def __contains__(self, token_id: int) -> bool:
        """True if the draft could say the target's ``token_id``."""
        return bool(self._known_ids[token_id])

    def draft_id(self, token_id: int) -> int:
        """What the draft model calls the target's ``token_id``."""
        return token_id if self._draft_ids is None else self._draft_ids[token_id]

    def leaves(self, row: Tensor) -> bool:
        """True if the most probable of all of the draft's tokens is none that the target has."""
        return self._entries is not None and first_choice(row[None]) not in self._used

    def _known(self, row: Tensor) -> Tensor:
        return row[: len(self._token_ids)] if self._entries is None else row[self._entries]

    def greedy(self, entry: DraftRequest, row: Tensor, drafted: Sequence[int]) -> int | None:
        """The most probable token after ``drafted``, from ``row`` [draft vocab]; None if the draft knows none there."""
        known = self._known(row)
        if not entry.sampler.edits:
            return int(self._token_ids[first_choice(known[None])])
        edited = self._edited(entry, known, drafted)
        return None if np.isneginf(edited).all() else greedy_token(edited)

    def best(self, entry: DraftRequest, row: Tensor, drafted: Sequence[int], count: int) -> list[tuple[int, float]]:
        """At most ``count`` tokens after ``drafted``, the most probable first, each with its log-probability."""
        known, token_ids = self._known(row), self._token_ids
        if entry.sampler.edits:
            known, token_ids = torch.from_numpy(self._edited(entry, known, drafted)), np.arange(self._vocab_size)
        values, places = torch.topk(known, min(count, len(known)))
        total = known.logsumexp(0)
        _check_finite(total)
        logprobs = (values - total).tolist()
        pairs = zip(token_ids[places.cpu().numpy()].tolist(), logprobs, strict=True)
        return [(token_id, logprob) for token_id, logprob in pairs if np.isfinite(logprob)]

    def probs(self, entry: DraftRequest, row: Tensor, drafted: Sequence[int]) -> Weights | None:
        """The draft's distribution [vocab_size] after ``drafted``; None if it knows no token of those that may come
        there."""
        known = self._known(row)
        if entry.sampler.edits:
            edited = self._edited(entry, known, drafted)
            return None if np.isneginf(edited).all() else probabilities(edited, entry.request.params)
        probs = np.zeros(self._vocab_size, dtype=np.float64)
        probs[self._token_ids] = probabilities(as_array(known), entry.request.params)
        return probs

    def _edited(self, entry: DraftRequest, known: Tensor, drafted: Sequence[int]) -> Weights:
        """Logits [vocab_size] as the request edits them; tokens unknown to the draft are out."""
        logits = np.full(self._vocab_size, -np.inf)
        logits[self._token_ids] = as_array(known)
        return entry.sampler.edited(logits, entry.request.token_ids, drafted)
