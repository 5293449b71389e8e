"""Structured output: which tokens a grammar lets come at any place of a request, drafted places included.

Grammars are compiled and matched by llguidance, which is imported when the first one is asked for. Knows nothing about
models, verifiers or how a distribution is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ConfigError, InvalidRequestError
from outrider.sampling_params import StructuredOutputs

Allowed = NDArray[np.bool_]

_KEPT_GRAMMARS = 64
"""Compiled grammars that are kept, for requests that bring the same again."""

_LONGEST_REASON = 400
"""Characters of llguidance's reasons that are passed on; some list every special token."""


class Matcher(Protocol):
    """A grammar's state after some tokens; ``LLMatcher`` of llguidance is one."""

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        """Take tokens up to the first that may not come; returns how many."""
        ...

    def rollback(self, num_tokens: int, /) -> bool:
        """Take back the latest tokens; False if that failed, which breaks the matcher."""
        ...

    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        ...

    def compute_logit_bias(self) -> bytes:
        """A byte for each token of the vocabulary, 0 where it may not come."""
        ...

    def is_error(self) -> bool:
        """Whether it is broken, by a dead end or a limit; a broken one lets end tokens come and stays broken."""
        ...

    def get_error(self) -> str:
        """What broke it."""
        ...

    def deep_copy(self) -> Matcher:
        """Another one in the same state."""
        ...


class Grammar:
    """One request's grammar, which can stand after any output and drafts.

    ``matcher`` stays at the grammar's beginning: what breaks on some drafts is made anew from it, for the drafts that
    another step brings must not feel it.

    With ``marker`` the grammar begins after the token that completes these bytes, and until then everything may come;
    ``token_bytes`` gives the bytes of a token. After an end token everything may come: such places are never emitted.
    """

    def __init__(
        self,
        matcher: Matcher,
        end_token_ids: Collection[int],
        *,
        marker: bytes = b"",
        token_bytes: Callable[[int], bytes] = lambda token_id: b"",
    ) -> None:
        self._beginning = matcher
        self._matcher = matcher.deep_copy()
        self._ends = frozenset(end_token_ids)
        self._marker = marker
        self._token_bytes = token_bytes
        self._num_committed = 0
        self._tokens: list[int] = []
        self._tails = [b""]  # the bytes before each place up to the marker's end, as many as could begin it
        self._start = None if marker else 0  # tokens before the grammar begins
        self._num_matched = 0  # tokens that the matcher holds; fewer than follow ``start`` after one that may not come

    def allowed(self, output: Sequence[int], drafted: Sequence[int] = ()) -> Allowed | None:
        """Which tokens [vocab] may follow ``output``, which only grows, and then ``drafted``; None if all may.

        After drafts of which one may not come no place is ever emitted; what is given for those is that token's own.
        Raises ``ValueError`` where the grammar leads nowhere, or exceeds what llguidance takes on.
        """
        self._move_to(output, drafted)
        if self._start is None or self._ended:
            return None
        allowed = _mask(self._matcher)
        if self._matcher.is_error():
            raise ValueError(f"the grammar can not go on here: {_reason(self._matcher)}")
        return allowed

    def num_legal(self, output: Sequence[int], drafted: Sequence[int]) -> int:
        """How many of ``drafted`` may come one after another after ``output``; nothing after an end token counts."""
        self._move_to(output, drafted)
        if self._start is None:
            return len(drafted)
        legal = self._start + self._num_matched + self._ended - len(output)
        return max(0, min(legal, len(drafted)))

    @property
    def _ended(self) -> bool:
        """Whether the token after those matched is an end token that may come."""
        place = (self._start or 0) + self._num_matched
        return place < len(self._tokens) and self._tokens[place] in self._ends and self._matcher.is_accepting()

    def _move_to(self, output: Sequence[int], drafted: Sequence[int]) -> None:
        if self._matcher.is_error():
            self._renew(self._num_matched)
        wanted = [*output[self._num_committed :], *drafted]
        held = self._tokens[self._num_committed :]
        shared = 0
        while shared < len(held) and shared < len(wanted) and held[shared] == wanted[shared]:
            shared += 1
        self._take_back(self._num_committed + shared)
        for token_id in wanted[shared:]:
            self._push(token_id)
        self._num_committed = len(output)

    def _take_back(self, keep: int) -> None:
        """Stand after the first ``keep`` tokens."""
        del self._tokens[keep:]
        if self._start is not None:
            surplus = self._start + self._num_matched - keep
            if surplus > 0:
                count = min(surplus, self._num_matched)
                self._num_matched -= count
                if not self._matcher.rollback(count):
                    self._renew(self._num_matched)
            if self._marker and keep < self._start:
                self._start = None
        del self._tails[keep + 1 :]

    def _renew(self, num_matched: int) -> None:
        """Take a matcher from the beginning to where one that broke stood."""
        self._matcher = self._beginning.deep_copy()
        start = self._start or 0
        self._num_matched = self._matcher.try_consume_tokens(self._tokens[start : start + num_matched])

    def _push(self, token_id: int) -> None:
        self._tokens.append(token_id)
        if self._start is None:
            seen = self._tails[-1] + self._token_bytes(token_id)
            self._tails.append(seen[-len(self._marker) :])
            if self._marker in seen:
                self._start = len(self._tokens)
        elif self._start + self._num_matched == len(self._tokens) - 1 and token_id not in self._ends:
            self._num_matched += self._matcher.try_consume_tokens([token_id])


class GrammarCompiler:
    """Makes grammars for the requests of one engine; what is expensive is made once, when first needed.

    ``tokenizer_json`` gives the tokenizer as ``tokenizers`` serialises it. Ids from the tokenizer's size to
    ``vocab_size`` are padding, which no grammar lets come.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, end_token_ids: Collection[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(end_token_ids)
        self._tokenizer: Any = None
        self._compiled: dict[str, Any] = {}

    def grammar(self, wanted: StructuredOutputs) -> Grammar:
        """A grammar at its beginning. Raises ``InvalidRequestError`` if it is none, or the model has no end token."""
        if not self._end_token_ids:
            raise InvalidRequestError(
                "structured_outputs need a model with an end token, which says that the output is complete",
                param="structured_outputs",
            )
        guidance = _llguidance()
        if self._tokenizer is None:
            try:
                self._tokenizer = guidance.LLTokenizer(
                    self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=self._end_token_ids
                )
            except ValueError as error:
                raise InvalidRequestError(
                    f"structured_outputs need a tokenizer over bytes or with byte fallback, which this model's is not: "
                    f"{error}",
                    param="structured_outputs",
                ) from None
        text = _grammar_text(guidance, wanted)
        if text not in self._compiled:
            matcher = guidance.LLMatcher(self._tokenizer, text, log_level=0)
            if not matcher.is_error():
                first = matcher.deep_copy()
                _mask(first)  # finds that nothing matches at all
                if first.is_error():
                    matcher = first
            if matcher.is_error():
                raise InvalidRequestError(
                    f"structured_outputs {wanted.kind} is not valid: {_reason(matcher)}", param="structured_outputs"
                )
            if len(self._compiled) == _KEPT_GRAMMARS:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[text] = matcher
        return Grammar(
            self._compiled[text],
            self._end_token_ids,
            marker=(wanted.after or "").encode(),
            token_bytes=lambda token_id: bytes(self._tokenizer.decode_bytes([token_id])),
        )


def _mask(matcher: Matcher) -> Allowed:
    allowed: Allowed = np.frombuffer(matcher.compute_logit_bias(), dtype=np.uint8) != 0
    return allowed


def _reason(matcher: Matcher) -> str:
    """What broke it, on one line and without the dump of the parser's state that may follow."""
    reason = " ".join(matcher.get_error().split("<state>")[0].split())
    if reason.startswith("NoExtension"):
        return "no text can match it"
    return reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "…"


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise ConfigError(f"structured_outputs need the package llguidance ({error}); pip install llguidance") from None
    return llguidance


def _grammar_text(guidance: Any, wanted: StructuredOutputs) -> str:
    """llguidance's own form of what is wanted."""
    matcher = guidance.LLMatcher
    if wanted.regex is not None:
        return str(matcher.grammar_from_regex(wanted.regex))
    if wanted.grammar is not None:
        return str(matcher.grammar_from_lark(wanted.grammar))
    if wanted.choice is not None:
        # Lark's strings are JSON's but for DEL, which may not stand in them as it is.
        choices = " | ".join(json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") for text in wanted.choice)
        return str(matcher.grammar_from_lark(f"start: {choices}"))
    schema = {"type": "object"} if wanted.json_object else wanted.json_schema
    return str(matcher.grammar_from_json_schema(json.dumps(schema)))
