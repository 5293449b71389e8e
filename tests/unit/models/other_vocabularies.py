"""Small tokenizers of different kinds: trained on a few lines, or written down token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from outrider.models.tokenizer import Tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind at all",
    "def area(width, height):\n    if width < 0:\n        return None\n    return width * height\n\n\n",
    "She said: 'it's late', but we'll stay; they don't know that 12 and 345 are numbers.",
    "café naïve übermut 東京は日本の首都です。 我喜歡吃蘋果。 👩‍👩‍👧 👍🏽",
    "to be or not to be, that is the question:  whether   it    is nobler to return the value",
]
QWEN_LIKE = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@cache
def byte_level(size: int = 420, *, nfc: bool = False, added: tuple[str, ...] = ("<|end|>", "<|turn|>")) -> Tokenizer:
    """Byte-level BPE; with ``nfc`` another pre-tokenizer, and a normalizer. The first of ``added`` ends a text."""
    backend = tokenizers.Tokenizer(models.BPE())
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not nfc)
    if nfc:
        backend.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(tokenizers.Regex(QWEN_LIKE), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte])
    else:
        backend.pre_tokenizer = byte
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    return Tokenizer(backend, eos_token_ids=(0,))


@cache
def sentencepiece(size: int = 500, *, prefix: bool = False) -> Tokenizer:
    """BPE over whole texts with a marker for spaces, bytes for what it does not know, and a start token.

    With ``prefix`` a space is put before every text and taken away again, and words are split.
    """
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    scheme = "first" if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    runs = ["\n", "\n\n", "▁▁", "▁▁▁▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=size + 256, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", *bytes_], show_progress=False
    )
    backend.train_from_iterator([text.replace("東", "").replace("\n", " ") for text in TEXTS], trainer)
    whole = models.BPE(
        vocab=backend.get_vocab(),
        merges=_merges(backend),
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    backend = tokenizers.Tokenizer(whole)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=prefix)
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", "<eos>", "<bos>", "<unk>")])
    backend.add_tokens([AddedToken(run, normalized=False) for run in runs])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", left=1)] if prefix else steps)
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return Tokenizer(backend, bos_token_id=2, eos_token_ids=(1,))


def spelled(tokens: Sequence[str], *, merges: Sequence[tuple[str, str]] = (), end: str | None = None) -> Tokenizer:
    """Exactly these ASCII tokens, in this order; ``end``, one of them, is the control token that ends a text."""
    vocabulary = {token: id for id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.decoder = decoders.ByteLevel()
    if end is not None:
        backend.add_special_tokens([AddedToken(end, special=True, normalized=False)])
    return Tokenizer(backend, eos_token_ids=() if end is None else (vocabulary[end],))


def _merges(backend: tokenizers.Tokenizer) -> list[tuple[str, str]]:
    import json

    return [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]
