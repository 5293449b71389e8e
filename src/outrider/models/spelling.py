"""How vocabularies spell the bytes that a token means: byte-level ones, and SentencePiece with its markers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
"""A token of SentencePiece that stands for one byte."""

Spelling = Callable[[str, bool], bytes]
"""From a token as the vocabulary writes it, and whether it was added beside the model's own, to the bytes it means."""


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 characters are their own bytes, the others follow from U+0100 on in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    return [] if backend.decoder is None else steps_of(json.loads(backend.decoder.__getstate__()))


def decoder_kinds(backend: tokenizers.Tokenizer) -> list[str]:
    """The kinds of the decoder's steps, sorted."""
    return sorted({step["type"] for step in _decoder_steps(backend)})


def spelling(backend: tokenizers.Tokenizer) -> Spelling | None:
    """How this tokenizer spells its tokens; None if that is not known."""
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        table = _byte_characters()

        def byte_level(token: str, added: bool) -> bytes:
            if added or not table.keys() >= set(token):
                return token.encode()
            return bytes(table[character] for character in token)

        return byte_level
    if not kinds or not kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return None
    spaces = [step["pattern"].get("String") for step in steps if step["type"] == "Replace" and step["content"] == " "]
    spaces += [step["replacement"] for step in steps if step["type"] == "Metaspace"]
    fallback = "ByteFallback" in kinds

    def sentencepiece(token: str, added: bool) -> bytes:
        if fallback and (piece := BYTE_PIECE.fullmatch(token)):
            return bytes([int(piece[1], 16)])
        for space in spaces:
            token = token.replace(space, " ")
        return token.encode()

    return sentencepiece


def steps_of(part: dict[str, Any]) -> list[dict[str, Any]]:
    """A decoder's, normalizer's or pre-tokenizer's parts, those of sequences too."""
    inner = [*part.get("decoders", ()), *part.get("normalizers", ()), *part.get("pretokenizers", ())]
    return [step for one in inner for step in steps_of(one)] if inner else [part]
