"""What the tokens of a vocabulary say, byte for byte, and which of them two vocabularies share.

Byte-level vocabularies write each byte as a character of its own, SentencePiece ones a space as a marker and single
bytes as ``<0x..>``; with that undone, a token is the bytes that it adds to a text. Control tokens add none: they are
shared by name or by role, never by what they are spelled like. Knows nothing about models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outrider.errors import VocabularyMismatchError
from outrider.models.spelling import BYTE_PIECE, decoder_kinds, spelling, steps_of
from outrider.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_FREQUENT = 8192
"""Of so many of a draft's tokens, the lowest ids and so the first merged, ``SharedTokens.share`` is taken."""


class Vocabulary:
    """The tokens of ``tokenizer`` as bytes, and text to tokens without start, prefix or control tokens.

    ``control`` holds the control tokens and how they are spelled; ``start_ids`` begin every text, and ``end_id`` is the
    first of the tokens that end one. ``prefixed`` says that the tokenizer puts a space before a text, which its decoder
    takes away again; ``encode`` here does not.
    """

    def __init__(self, tokenizer: Tokenizer, num_rows: int | None = None) -> None:
        """Ids from ``num_rows`` on are left out: the model has no rows for them.

        Raises ``VocabularyMismatchError`` if it is not known how the tokenizer spells its tokens.
        """
        backend = tokenizer.backend
        spell = spelling(backend)
        if spell is None:
            kinds = "+".join(decoder_kinds(backend)) or None
            raise VocabularyMismatchError(
                f"tokens of this tokenizer cannot be told byte for byte (decoder {kinds!r}); a draft with another "
                f"vocabulary needs byte-level or SentencePiece tokenizers on both sides"
            )
        ends = tokenizer.eos_token_ids
        self.end_id = next((id for id in ends if num_rows is None or id < num_rows), None)
        self.start_ids = tuple(id for id in tokenizer.encode("") if id not in ends)
        tokens = {id: token for id, token in tokenizer.tokens.items() if num_rows is None or id < num_rows}
        added = backend.get_added_tokens_decoder()
        control = {*tokenizer.special_ids, *ends, *self.start_ids}
        unknown = getattr(backend.model, "unk_token", None)
        self.control = {id: token for id, token in tokens.items() if id in control or token == unknown}
        self._bytes = {id: spell(token, id in added) for id, token in tokens.items() if id not in self.control}
        pieces = [id for id in self._bytes if not BYTE_PIECE.fullmatch(tokens[id])]
        self._ids: dict[bytes, int] = {}
        for id in (*pieces, *self._bytes):  # where two tokens say the same, the piece stands for it
            self._ids.setdefault(self._bytes[id], id)
        self._ids.pop(b"", None)
        self.prefixed = _adds_prefix(self, backend)
        self._backend = _without_prefix(backend) if self.prefixed else backend

    def __contains__(self, token_id: object) -> bool:
        return token_id in self._bytes or token_id in self.control

    def bytes_of(self, token_id: int) -> bytes | None:
        """What the token adds to a text; None for control tokens and for ids without a token."""
        return self._bytes.get(token_id)

    def says(self, token_ids: Sequence[int], text: bytes) -> bool:
        """True if the tokens are ``text``; behind a normalizer, which may spell it anew, if all are ordinary tokens."""
        said = [self._bytes.get(token_id) for token_id in token_ids]
        if None in said or self._backend.normalizer is not None:
            return None not in said
        return b"".join(part for part in said if part is not None) == text

    @property
    def by_bytes(self) -> dict[bytes, int]:
        """For each byte string that ordinary tokens say, the one token that stands for it."""
        return self._ids

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Token ids of a piece of text; control tokens written out in it are ordinary text unless ``control``."""
        backend = self._backend
        usual = backend.encode_special_tokens
        backend.encode_special_tokens = not control
        try:
            return list(backend.encode(text, add_special_tokens=False).ids)
        finally:
            backend.encode_special_tokens = usual


@dataclass(frozen=True)
class SharedTokens:
    """The tokens that two vocabularies share, one to one: ``draft_ids[i]`` is ``target_ids[i]``, both [shared].

    ``num_ordinary`` of them are ordinary ones, of ``num_draft``; ``share`` is the part of the draft's most frequent
    ordinary tokens that are shared. ``images`` maps the target's control tokens to the draft's.
    """

    draft_ids: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    num_ordinary: int
    num_draft: int
    share: float
    images: dict[int, int]


def shared_tokens(draft: Vocabulary, target: Vocabulary) -> SharedTokens:
    """Ordinary tokens that say the same bytes; control tokens of the same name; and what ends a text, by its role."""
    ordinary = [(id, target.by_bytes[text]) for text, id in draft.by_bytes.items() if text in target.by_bytes]
    names = {name: id for id, name in draft.control.items()}
    images = {id: names[name] for id, name in target.control.items() if name in names}
    ends = target.end_id, draft.end_id
    if ends[0] is not None and ends[1] is not None and ends[0] not in images and ends[1] not in images.values():
        images[ends[0]] = ends[1]
    pairs = sorted([*ordinary, *((own, id) for id, own in images.items())])
    known = {id for id, _ in ordinary}
    frequent = sorted(id for text, id in draft.by_bytes.items() if len(text) > 1)[:_FREQUENT]
    return SharedTokens(
        np.array([own for own, _ in pairs], dtype=np.int64),
        np.array([id for _, id in pairs], dtype=np.int64),
        num_ordinary=len(ordinary),
        num_draft=len(draft.by_bytes),
        share=sum(id in known for id in frequent) / max(len(frequent), 1),
        images=images,
    )


def _adds_prefix(vocabulary: Vocabulary, backend: tokenizers.Tokenizer) -> bool:
    letter = next((text for text in vocabulary.by_bytes if len(text) == 1 and text.isalpha()), None)
    if letter is None:
        return False
    first = backend.encode(letter.decode(), add_special_tokens=False).ids[:1]
    return any((vocabulary.bytes_of(id) or b"").startswith(b" ") for id in first)


def _without_prefix(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy that puts no space before a text."""
    from tokenizers import Tokenizer as Backend

    whole = json.loads(backend.to_str())
    for name, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        kept = [step for step in steps_of(whole[name] or {inner: []}) if step.get("type", "Prepend") != "Prepend"]
        for step in kept:
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = "never"
            if step["type"] == "ByteLevel":
                step["add_prefix_space"] = False
        whole[name] = {"type": "Sequence", inner: kept} if kept else None
    return Backend.from_str(json.dumps(whole))
