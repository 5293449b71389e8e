"""Small formal languages over token ids for the audit's grammars, with a reference implementation of their masks.

An automaton takes the place of llguidance's matcher under the real ``Grammar``. So the engine's own code moves, rolls
back and applies the masks. ``Language.masked`` is the reference: it starts from the first token at every position and
shares no code with ``Grammar``.
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
    """``moves[state]`` maps the tokens allowed in a state to the next state. The text can end in ``accepting`` states.

    With ``after``, the language starts after the first token of that id; before that, every token is allowed.
    """

    moves: tuple[dict[int, int], ...]
    accepting: frozenset[int]
    after: int | None = None

    def masked(self, logits: Weights, output: Sequence[int], end_token_ids: frozenset[int]) -> Weights:
        """``logits`` [vocab] with -inf for tokens not allowed after ``output``; unchanged after a forbidden token."""
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
    """The ``Matcher`` of a language. ``states`` are the states after each token, for rollback."""

    language: Language
    vocab_size: int
    end_token_ids: frozenset[int]
    states: list[int] = field(default_factory=lambda: [0])

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        """Consume tokens up to the first forbidden one; return the number consumed."""
        for taken, token_id in enumerate(tokens):
            moves = self.language.moves[self.states[-1]]
            if token_id not in moves:
                return taken
            self.states.append(moves[token_id])
        return len(tokens)

    def rollback(self, num_tokens: int, /) -> bool:
        """Undo the latest ``num_tokens`` tokens. Always succeeds."""
        del self.states[len(self.states) - num_tokens :]
        return True

    def is_accepting(self) -> bool:
        """True if the text can end at this point."""
        return self.states[-1] in self.language.accepting

    def compute_logit_bias(self) -> bytes:
        """One byte per token [vocab]; 0 means that the token is forbidden."""
        mask = np.zeros(self.vocab_size, dtype=np.uint8)
        mask[[token_id for token_id in self.language.moves[self.states[-1]] if token_id < self.vocab_size]] = 255
        if self.is_accepting():
            mask[list(self.end_token_ids)] = 255
        return mask.tobytes()

    def is_error(self) -> bool:
        """Always False: an automaton has no limits."""
        return False

    def get_error(self) -> str:
        """Always empty."""
        return ""

    def deep_copy(self) -> AutomatonMatcher:
        """An independent matcher in the same state."""
        return AutomatonMatcher(self.language, self.vocab_size, self.end_token_ids, list(self.states))


def grammar_of(language: Language, vocab_size: int, end_token_ids: frozenset[int]) -> Grammar:
    """A new ``Grammar`` of one request over ``language``. Token 0 is the text "a", token 1 is "b", and so on."""
    marker = b"" if language.after is None else bytes([_FIRST_LETTER + language.after])
    matcher = AutomatonMatcher(language, vocab_size, end_token_ids)
    return Grammar(
        matcher, end_token_ids, marker=marker, token_bytes=lambda token_id: bytes([_FIRST_LETTER + token_id])
    )
