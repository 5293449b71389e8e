"""How often each token occurred so far, kept up to date token by token, drafted tokens included and taken back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """Counts of the tokens of one request.

    ``ids`` [seen], ``counts`` [seen] and ``known`` [seen] run beside each other: tokens that occurred, how often the
    output holds them, and whether prompt or output do. A token that was only drafted and taken back may stay in
    ``ids``, with count 0 and unknown. Moving to another place costs what changes, not what is there.
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
        """Stand after ``committed``, which is the prompt and the output and only grows, and then ``drafted``."""
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
        """Tokens that occurred, each once, in the order of their first occurrence after the prompt's."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often the output, drafts included, holds each of ``ids``."""
        return self._counts[: self._size]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether prompt or output hold each of ``ids``."""
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
