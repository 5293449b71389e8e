"""The audit's automata: the matcher under the real grammar and the mask by definition agree on every string."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from outrider.audit.languages import Language, grammar_of
from outrider.audit.traits import ALTERNATING

VOCAB, END = 4, frozenset({2})
LOGITS = np.zeros(VOCAB)


@pytest.mark.parametrize("language", [ALTERNATING, replace(ALTERNATING, after=1)], ids=["at once", "after b"])
def test_grammar_and_definition_agree_on_every_legal_string(language: Language) -> None:
    grammar = grammar_of(language, VOCAB, END)
    seen = set[tuple[bool, ...]]()
    for drafted in sorted((*string,) for length in range(5) for string in product(range(VOCAB), repeat=length)):
        if grammar.num_legal((), drafted) < len(drafted) or END & set(drafted):
            continue
        expected = np.isfinite(language.masked(LOGITS, drafted, END))
        allowed = grammar.allowed((), drafted)
        assert np.array_equal(np.ones(VOCAB, dtype=bool) if allowed is None else allowed, expected), drafted
        seen.add(tuple(expected.tolist()))
    assert len(seen) >= 4, "the mask must change from place to place"


def test_a_letter_does_not_follow_itself_and_an_end_comes_behind_the_first_alone() -> None:
    grammar = grammar_of(ALTERNATING, VOCAB, END)
    assert [grammar.num_legal((), drafted) for drafted in ((0, 0), (0, 1), (0, 2), (1, 2), (2,))] == [1, 2, 2, 1, 0]
    assert grammar.num_legal((0, 1), (1, 0)) == 0
