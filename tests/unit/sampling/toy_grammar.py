"""llguidance over a vocabulary of a few letters, so that languages can be written down whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llguidance

from outrider.sampling.grammar import Grammar
from outrider.sampling_params import StructuredOutputs


class Letters:
    """Tokens "a", "b", … and, last, an end token."""

    bos_token_id = None

    def __init__(self, size: int) -> None:
        self.eos_token_id = size - 1
        self.special_token_ids = [size - 1]
        self.tokens = [*(bytes([ord("a") + place]) for place in range(size - 1)), b"<end>"]

    def __call__(self, text: Any) -> list[int]:
        return [self.tokens.index(bytes([each])) for each in (text.encode() if isinstance(text, str) else text)]


def letter_grammar(regex: str, size: int, *, marker: bytes = b"") -> Grammar:
    """A grammar at its beginning over ``size`` tokens, the last of which ends."""
    letters = Letters(size)
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(letters), n_vocab=size)
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_regex(regex), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return Grammar(matcher, [size - 1], marker=marker, token_bytes=lambda token_id: letters.tokens[token_id])


class LetterGrammars:
    """Stands in for ``GrammarCompiler`` in an engine over letters; ``change`` may plant a fault."""

    def __init__(self, size: int, change: Callable[[Grammar], Any] = lambda grammar: grammar) -> None:
        self._size = size
        self._change = change

    def grammar(self, wanted: StructuredOutputs) -> Any:
        """A grammar of the regular expression wanted."""
        return self._change(letter_grammar(str(wanted.regex), self._size, marker=(wanted.after or "").encode()))
