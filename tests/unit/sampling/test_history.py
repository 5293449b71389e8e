"""Counts kept token by token equal counts made anew, wherever the history moves."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.sampling.history import History

TOKENS = st.lists(st.integers(0, 5), max_size=6)


@settings(max_examples=100)
@given(TOKENS, st.lists(st.tuples(TOKENS, st.booleans()), max_size=8))
def test_moving_equals_counting_anew(prompt: list[int], moves: list[tuple[list[int], bool]]) -> None:
    history, committed = History(prompt), list(prompt)
    for tokens, commit in moves:
        if commit:
            committed += tokens
            history.move_to(committed)
        else:
            history.move_to(committed, tokens)
        output = Counter(committed[len(prompt) :] + ([] if commit else tokens))
        found = {int(i): int(c) for i, c in zip(history.ids, history.counts, strict=True) if c}
        assert found == dict(output)
        assert set(history.ids[history.known].tolist()) == {*prompt, *output}
        assert len(set(history.ids.tolist())) == len(history.ids)


def test_drafts_taken_back_leave_nothing_and_many_new_tokens_fit() -> None:
    history = History([3, 3, 1])
    history.move_to([3, 3, 1], list(range(100)))
    assert history.counts.sum() == 100
    history.move_to([3, 3, 1, 7], ())
    assert history.ids[history.known].tolist() == [1, 3, 7]
    assert history.counts[history.known].tolist() == [0, 0, 1]
    assert history.known.dtype == np.bool_
