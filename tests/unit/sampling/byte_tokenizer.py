"""A tokenizer whose tokens are the 256 bytes, an end token, and a few longer pieces of JSON."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_TOKEN = 256
PIECES = ('{"', '":', '",', '"}', "true", "false", "null", "10")


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes, 256 ends; the merges that make ``PIECES`` follow."""
    letters = _letter_of_bytes()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    vocabulary["<end>"] = END_TOKEN
    merges: list[tuple[str, str]] = []
    for piece in PIECES:
        for end in range(2, len(piece) + 1):
            pair = (piece[: end - 1], piece[end - 1])
            if pair not in merges:
                merges.append(pair)
                vocabulary.setdefault("".join(pair), len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def _letter_of_bytes() -> list[str]:
    """The printable letter that byte-level vocabularies write for each byte (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [""] * 256
    spare = 256
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte], spare = chr(spare), spare + 1
    return letters
