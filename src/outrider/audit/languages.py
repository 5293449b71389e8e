"""Small formal languages over token ids, as masks for the audit's requests, and what they allow by definition.

An automaton stands in for llguidance's matcher under the real ``Grammar``, so that masks are moved, rolled back and
applied by the code that an engine runs. ``masked`` walks from the beginning at every place and shares none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.sampling.grammar import Grammar
from outrider.sampling.noise import Weights

_FIRST_LETTER = ord("a")


@dataclass(frozen=True)
class Language:
    """``moves[state]`` maps the tokens that may come there to the next state; ``accepting`` states may end.

    With ``after`` it begins behind the first token of that id, and until then everything may come.
    """

    moves: tuple[dict[int, int], ...]
    accepting: frozenset[int]
    after: int | None = None

    def masked(self, logits: Weights, output: Sequence[int], end_token_ids: frozenset[int]) -> Weights:
        """``logits`` [vocab] after ``output``, -inf where a token may not come; behind an illegal one all may."""
        if self.after is not None:
            if self.after not in output:
                return logits
            output = output[list(output).index(self.after) + 1 :]
        state = 0
        for token_id in output:
            if token_id not in self.moves[state]:
                return logits
            state = self.moves[state][token_id]
        allowed = [*self.moves[state], *(end_token_ids if state in self.accepting else ())]
        return np.where(np.isin(np.arange(len(logits)), allowed), logits, -np.inf)


@dataclass
class AutomatonMatcher:
    """The ``Matcher`` of a language; the states behind it are kept, for rolling back."""

    language: Language
    vocab_size: int
    end_token_ids: frozenset[int]
    states: list[int] = field(default_factory=lambda: [0])

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        """Take tokens up to the first that may not come; returns how many."""
        for taken, token_id in enumerate(tokens):
            moves = self.language.moves[self.states[-1]]
            if token_id not in moves:
                return taken
            self.states.append(moves[token_id])
        return len(tokens)

    def rollback(self, num_tokens: int, /) -> bool:
        """Take back the latest tokens."""
        del self.states[len(self.states) - num_tokens :]
        return True

    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self.states[-1] in self.language.accepting

    def compute_logit_bias(self) -> bytes:
        """A byte for each token [vocab], 0 where it may not come."""
        mask = np.zeros(self.vocab_size, dtype=np.uint8)
        mask[[token_id for token_id in self.language.moves[self.states[-1]] if token_id < self.vocab_size]] = 255
        if self.is_accepting():
            mask[list(self.end_token_ids)] = 255
        return mask.tobytes()

    def is_error(self) -> bool:
        """Never: an automaton has no limits."""
        return False

    def get_error(self) -> str:
        """Nothing broke it."""
        return ""

    def deep_copy(self) -> AutomatonMatcher:
        """Another one in the same state."""
        return AutomatonMatcher(self.language, self.vocab_size, self.end_token_ids, list(self.states))


def grammar_of(language: Language, vocab_size: int, end_token_ids: frozenset[int]) -> Grammar:
    """The real grammar of one request over ``language``, at its beginning; token 0 is the text "a", 1 is "b"."""
    marker = b"" if language.after is None else bytes([_FIRST_LETTER + language.after])
    matcher = AutomatonMatcher(language, vocab_size, end_token_ids)
    return Grammar(
        matcher, end_token_ids, marker=marker, token_bytes=lambda token_id: bytes([_FIRST_LETTER + token_id])
    )
