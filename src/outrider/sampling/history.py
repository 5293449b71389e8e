"""Token counts of one request for the penalties, updated token by token, including drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """Token counts of one request.

    ``ids``, ``counts`` and ``known`` are parallel arrays [num_seen]: a token id, its number of occurrences in the
    output, and whether it occurs in the prompt or output. A rolled-back draft can stay in ``ids`` with count 0 and
    ``known`` False. The cost of ``move_to`` grows with the number of tokens that change, not with the length of text.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        ids = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self._size = len(ids)
        self._ids = ids
        self._counts = np.zeros(len(ids), dtype=np.int64)
        self._in_prompt = np.ones(len(ids), dtype=np.bool_)
        self._place = {int(token_id): place for place, token_id in enumerate(ids)}
        self._num_committed = len(prompt_token_ids)
        self._drafted: list[int] = []

    def move_to(self, committed: Sequence[int], drafted: Sequence[int] = ()) -> None:
        """Count the tokens of ``committed`` (prompt and output) and ``drafted``.

        ``committed`` must extend the ``committed`` of the previous call. Drafts of that call are rolled back.
        """
        if len(committed) > self._num_committed:
            self._take_back(0)
            for token_id in committed[self._num_committed :]:
                self._count(token_id)
            self._num_committed = len(committed)
        shared = 0
        for one, other in zip(self._drafted, drafted, strict=False):
            if one != other:
                break
            shared += 1
        self._take_back(shared)
        for token_id in drafted[shared:]:
            self._count(token_id)
            self._drafted.append(token_id)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct token ids: first those of the prompt in ascending order, then the others as they occurred."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Occurrences of each of ``ids`` in the output, drafts included."""
        return self._counts[: self._size]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each of ``ids`` occurs in the prompt or output."""
        known: NDArray[np.bool_] = self._in_prompt[: self._size] | (self.counts > 0)
        return known

    def _take_back(self, keep: int) -> None:
        for token_id in self._drafted[keep:]:
            self._counts[self._place[token_id]] -= 1
        del self._drafted[keep:]

    def _count(self, token_id: int) -> None:
        place = self._place.get(token_id)
        if place is None:
            place = self._place[token_id] = self._size
            if place == len(self._ids):
                room = max(16, place)
                self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.int64)])
                self._in_prompt = np.concatenate([self._in_prompt, np.zeros(room, dtype=np.bool_)])
            self._ids[place] = token_id
            self._size += 1
        self._counts[place] += 1
