"""Structured output: the set of tokens that a grammar allows at each position, including drafted positions.

llguidance compiles and matches the grammars. It is imported when the first request with a grammar arrives. This module
knows nothing about models, verifiers or sampling.
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
"""Number of compiled grammars that the compiler keeps. Requests with an equal grammar reuse them."""

_LONGEST_REASON = 400
"""Longest llguidance message, in characters, that an error quotes. Some messages list every special token."""


class Matcher(Protocol):
    """The state of a grammar after a sequence of tokens. llguidance's ``LLMatcher`` implements this protocol."""

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        """Consume tokens up to the first one that the grammar forbids; return the number consumed."""
        ...

    def rollback(self, num_tokens: int, /) -> bool:
        """Undo the latest ``num_tokens`` tokens; False if that failed, after which the matcher is unusable."""
        ...

    def is_accepting(self) -> bool:
        """True if the text is complete at this point."""
        ...

    def compute_logit_bias(self) -> bytes:
        """One byte per token of the vocabulary; 0 means that the token is forbidden."""
        ...

    def is_error(self) -> bool:
        """True after a dead end or an exceeded limit. Such a matcher allows end tokens and does not recover."""
        ...

    def get_error(self) -> str:
        """The reason for ``is_error``."""
        ...

    def deep_copy(self) -> Matcher:
        """An independent matcher in the same state."""
        ...


class Grammar:
    """The grammar of one request. It moves to the position after any output and drafts.

    ``matcher`` stays at the start of the grammar. When some drafts break the working copy, a new copy is made from it,
    so that later steps are not affected.

    With ``marker`` the grammar starts after the token that completes these bytes; before that, every token is allowed.
    ``token_bytes`` maps a token id to its bytes. After an end token every token is allowed, because such positions are
    never emitted.
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
        self._tails = [b""]  # per token up to the marker: the last len(marker) bytes of text, to search for the marker
        self._start = None if marker else 0  # number of tokens before the grammar starts
        self._num_matched = 0  # number of tokens in the matcher; it stops before the first forbidden token

    def allowed(self, output: Sequence[int], drafted: Sequence[int] = ()) -> Allowed | None:
        """The mask [vocab] of tokens that are allowed after ``output`` and ``drafted``; None if all are.

        ``output`` must extend the output of the previous call. Positions after a forbidden draft are never emitted;
        their mask is unspecified. Raises ``ValueError`` if the grammar allows no continuation or exceeds a limit of
        llguidance.
        """
        self._move_to(output, drafted)
        if self._start is None or self._ended:
            return None
        allowed = _mask(self._matcher)
        if self._matcher.is_error():
            raise ValueError(f"the grammar cannot continue here: {_reason(self._matcher)}")
        return allowed

    def num_legal(self, output: Sequence[int], drafted: Sequence[int]) -> int:
        """Length of the longest prefix of ``drafted`` that the grammar allows after ``output``.

        The prefix ends at the first end token.
        """
        self._move_to(output, drafted)
        if self._start is None:
            return len(drafted)
        legal = self._start + self._num_matched + self._ended - len(output)
        return max(0, min(legal, len(drafted)))

    @property
    def _ended(self) -> bool:
        """True if the token after the matched ones is an end token that the grammar allows."""
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
        """Roll back to the position after the first ``keep`` tokens."""
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
        """Replace a broken matcher by a new one that has consumed ``num_matched`` tokens."""
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
    """Compiles grammars for the requests of one engine. llguidance's tokenizer is built once, at the first request.

    ``tokenizer_json`` returns the tokenizer in the JSON format of the ``tokenizers`` package. Ids from the tokenizer's
    size to ``vocab_size`` are padding; every grammar forbids them.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, end_token_ids: Collection[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(end_token_ids)
        self._tokenizer: Any = None
        self._compiled: dict[str, Any] = {}

    def grammar(self, wanted: StructuredOutputs) -> Grammar:
        """A new grammar for one request.

        Raises ``InvalidRequestError`` if the grammar is invalid or the model has no end token, and ``ConfigError`` if
        llguidance is not installed.
        """
        if not self._end_token_ids:
            raise InvalidRequestError(
                "structured_outputs need a model with an end token, because only an end token completes the output",
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
                    f"structured_outputs need a byte-level tokenizer or one with byte fallback; "
                    f"this model's tokenizer is neither: {error}",
                    param="structured_outputs",
                ) from None
        text = _grammar_text(guidance, wanted)
        if text not in self._compiled:
            matcher = guidance.LLMatcher(self._tokenizer, text, log_level=0)
            if not matcher.is_error():
                first = matcher.deep_copy()
                _mask(first)  # reports a grammar that no text matches
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
    """The matcher's error on one line, without the dump of the parser state."""
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
    """The grammar in llguidance's format."""
    matcher = guidance.LLMatcher
    if wanted.regex is not None:
        return str(matcher.grammar_from_regex(wanted.regex))
    if wanted.grammar is not None:
        return str(matcher.grammar_from_lark(wanted.grammar))
    if wanted.choice is not None:
        # Lark strings are JSON strings, except that DEL must be escaped.
        choices = " | ".join(json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") for text in wanted.choice)
        return str(matcher.grammar_from_lark(f"start: {choices}"))
    schema = {"type": "object"} if wanted.json_object else wanted.json_schema
    return str(matcher.grammar_from_json_schema(json.dumps(schema)))
