"""Text to token ids and back over the ``tokenizers`` library. Knows nothing about model files or weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from outrider.errors import InvalidRequestError
from outrider.models.chat_template import ChatTemplate
from outrider.models.spelling import Spelling, spelling

if TYPE_CHECKING:
    import tokenizers

_PLACEHOLDER = re.compile(r"\[PAD\d+\]")
"""What converters write for ids that a model has rows for and its tokenizer has no token for."""


class VocabularyDifference(NamedTuple):
    """The first place where two vocabularies differ; a token is ``None`` where its vocabulary has no such id."""

    own_size: int
    other_size: int
    token_id: int
    own_token: str | None
    other_token: str | None


class Tokenizer:
    """One model's tokenizer.

    ``eos_token_ids`` end a text; ``bos_token_id`` starts one where the model wants that. ``named_tokens`` are the
    texts that chat templates ask for by name: ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token``.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: tuple[int, ...] = (),
        chat_template: str | None = None,
        named_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        self._named_tokens = dict(named_tokens or {})

    @property
    def vocab_size(self) -> int:
        """Number of tokens; a model may have more rows than this, for padding."""
        return len(self.tokens)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens, which ``decode`` leaves out by default."""
        return frozenset(id for id, token in self.backend.get_added_tokens_decoder().items() if token.special)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; control tokens written out in it become their own ids.

        ``add_special_tokens`` lets the model's own rule add a start token; a rendered chat template has it already.
        Raises ``InvalidRequestError`` for what is no string, or not Unicode (a lone surrogate).
        """
        try:
            return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (TypeError, UnicodeEncodeError):
            raise InvalidRequestError(_not_text(text), param="prompt") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the tokens; bytes that form no character become U+FFFD, ids without a token nothing."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def stream(self, skip_special_tokens: bool = True) -> TextStream:
        """A decoder for tokens that come one by one."""
        return TextStream(self, skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself, control tokens too; part of a character shows as U+FFFD."""
        return self.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, parts of characters too; empty for ids without a token."""
        token, added = self.tokens.get(token_id, ""), token_id in self.backend.get_added_tokens_decoder()
        return token.encode() if self._spelling is None or added else self._spelling(token, added)

    @cached_property
    def _spelling(self) -> Spelling | None:
        return spelling(self.backend)

    @property
    def supports_tools(self) -> bool:
        """True if the chat template has a place for tools."""
        return self.chat_template is not None and "tools" in self.chat_template

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Id -> token as the vocabulary spells it, in id order, without the placeholders at the end."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        tokens = sorted((id, token) for token, id in vocabulary.items())
        while tokens and _PLACEHOLDER.fullmatch(tokens[-1][1]):
            tokens.pop()
        return dict(tokens)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary: equal for two tokenizers exactly if ``vocabulary_difference`` is ``None``."""
        return hashlib.sha256(json.dumps(list(self.tokens.items())).encode()).hexdigest()

    def vocabulary_difference(self, other: Tokenizer) -> VocabularyDifference | None:
        """The first id whose token differs, or ``None`` if every id means the same in both; padding does not count."""
        if self.fingerprint == other.fingerprint:
            return None
        own, theirs = self.tokens, other.tokens
        first = min(id for id in own.keys() | theirs.keys() if own.get(id) != theirs.get(id))
        return VocabularyDifference(len(own), len(theirs), first, own.get(first), theirs.get(first))

    @cached_property
    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template; use generate with a plain prompt, or an instruction-tuned model",
                param="messages",
            )
        return ChatTemplate(self.chat_template)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The conversation as the model's training saw it, ready for ``encode(..., add_special_tokens=False)``.

        ``add_generation_prompt`` opens the assistant's turn; ``variables`` are the template's own, such as ``tools``.
        Raises ``InvalidRequestError`` if the model has no template, if a message lacks role or content (naming its
        index), or if the template refuses.
        """
        return self._template.render(
            messages, **{**self._named_tokens, **variables, "add_generation_prompt": add_generation_prompt}
        )


def _not_text(text: object) -> str:
    if not isinstance(text, str):
        return f"the text must be a string, not {type(text).__name__}"
    at = next(index for index, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    return f"the text is not valid Unicode: lone surrogate {text[at]!r} at index {at}; send UTF-8"


class TextStream:
    """Text of tokens as they come, never cutting a character; the pieces joined equal ``decode`` of all tokens."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._pending: list[int] = []

    def step(self, token_id: int) -> str:
        """Text that this token completes; empty while a character is incomplete."""
        piece = self._stream.step(self._tokenizer.backend, token_id)
        if piece is None:
            self._pending.append(token_id)
            return ""
        self._pending.clear()
        return piece

    def finish(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character that never was completed."""
        rest = self._tokenizer.decode(self._pending, self._skip_special_tokens)
        self._pending.clear()
        return rest
