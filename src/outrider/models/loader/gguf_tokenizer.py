"""The tokenizer that a GGUF file describes, converted once and kept in the user's cache.

Byte-level BPE (``gpt2``) is built here, with the pre-tokenizer that the file names, since a wrong one gives other
tokens without any error. SentencePiece vocabularies (``llama``) name no merges: those follow from pieces and scores.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelFormatError
from outrider.models.loader.cache import atomic_file, cache_directory
from outrider.models.loader.gguf_file import GGUFFile, StringArray
from outrider.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_CONVERSION = 2
"""Raised whenever the conversion changes, so that tokenizers cached by older versions are not used."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_SPACE = "\u2581"
"""How SentencePiece writes a space."""

_PLACEHOLDER = re.compile(r"\[PAD\d+\]")

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_GPT2 = ("gpt-2",)
_SPLITS = {"qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3}
PRE_TOKENIZERS = (*_DIGITS, *_GPT2, *_SPLITS)
"""Values of ``tokenizer.ggml.pre`` that are understood."""

_END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
)
"""Control tokens that end a text or a turn. A GGUF file names one end token where the original lists several."""


def load_tokenizer(file: GGUFFile) -> Tokenizer:
    """The file's tokenizer, from the cache if it has been converted before.

    Raises ``ModelFormatError`` if the file has none, or one of a kind that is not supported.
    """
    backend = cached_backend(file.tokenizer_digest(), lambda: _build(file))
    values = file.metadata
    template = values.get("tokenizer.chat_template")
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: _token_id(file, key) for name, key in named.items()}
    texts = {name: backend.id_to_token(id) for name, id in ids.items() if id is not None}
    return Tokenizer(
        backend,
        bos_token_id=ids["bos_token"],
        eos_token_ids=_end_ids(file, backend),
        chat_template=template if isinstance(template, str) else None,
        named_tokens={name: text for name, text in texts.items() if text is not None},
    )


def cached_backend(digest: str, build: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """The converted tokenizer kept under ``digest``, or a new one from ``build``, which is then kept.

    A cached file starts with the SHA-256 of the rest; one that is damaged or cannot be read is built anew, and a
    cache that cannot be written is done without.
    """
    from tokenizers import Tokenizer as Backend

    path = cache_directory() / "tokenizers" / f"{digest}.v{_CONVERSION}"
    try:
        seal, _, body = path.read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() == seal:
            return Backend.from_buffer(body)
    except OSError:
        pass
    backend = build()
    body = backend.to_str().encode()
    try:
        with atomic_file(path) as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except OSError:
        pass
    return backend


def _token_id(file: GGUFFile, key: str) -> int | None:
    name = f"tokenizer.ggml.{key}_token_id"
    value, tokens = file.metadata.get(name), file.metadata.get("tokenizer.ggml.tokens")
    if value is None:
        return None
    if not isinstance(value, int) or not isinstance(tokens, StringArray) or not 0 <= value < tokens.count:
        raise ModelFormatError(f"{file.path}: {name}={value!r} is not in the vocabulary; the file is damaged")
    return value


def _end_ids(file: GGUFFile, backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """Ids that end a text: those the file names, and control tokens that are known to."""
    named = [_token_id(file, key) for key in ("eos", "eot", "eom")]
    special = {token.content: id for id, token in backend.get_added_tokens_decoder().items() if token.special}
    known = [special.get(token) for token in _END_TOKENS]
    return tuple(dict.fromkeys(id for id in (*named, *known) if id is not None))


def _build(file: GGUFFile) -> tokenizers.Tokenizer:
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level_bpe(file)
    if kind == "llama":
        return _sentencepiece(file)
    raise ModelFormatError(f"{file.path}: tokenizer {kind!r} is not supported; supported are: gpt2, llama")


def _byte_level_bpe(file: GGUFFile) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    pre = file.metadata.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise ModelFormatError(
            f"{file.path}: pre-tokenizer {pre!r} is not supported, and another one would give wrong tokens; "
            f"supported are: {', '.join(PRE_TOKENIZERS)}"
        )
    tokens, types = _tokens_and_types(file)
    merges = [tuple(merge.split(" ")) for merge in file.strings("tokenizer.ggml.merges")]
    if bad := next((merge for merge in merges if len(merge) != 2), None):
        raise ModelFormatError(f"{file.path}: merge {' '.join(bad)!r} is not two tokens; the file is damaged")
    vocabulary = _vocabulary(file, tokens)
    pairs: Any = merges
    try:
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=_SPLITS.get(pre) == _LLAMA3)
    except Exception as error:  # the library raises bare exceptions
        raise ModelFormatError(f"{file.path}: vocabulary and merges do not fit together ({error})") from None
    backend = Backend(model)
    if _SPLITS.get(pre) == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(str(pre))
    backend.decoder = decoders.ByteLevel()
    _add_marked(backend, tokens, types)
    _add_start_token(backend, file, tokens, default=_SPLITS.get(pre) == _LLAMA3)
    return backend


def _add_marked(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Let the tokens that the file marks stand for themselves in any text: control tokens, and the user's own."""
    from tokenizers import AddedToken

    typed = list(zip(tokens, types, strict=True))
    special = [token for token, type_id in typed if type_id in (_CONTROL, _UNKNOWN)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token, type_id in typed if type_id == _USER_DEFINED])


def _add_start_token(backend: tokenizers.Tokenizer, file: GGUFFile, tokens: list[str], default: bool) -> None:
    from tokenizers import processors

    bos = _token_id(file, "bos")
    if bos is not None and file.metadata.get("tokenizer.ggml.add_bos_token", default):
        start = tokens[bos]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A {start} $B", special_tokens=[(start, bos)]
        )


def _tokens_and_types(file: GGUFFile) -> tuple[list[str], list[int]]:
    """Tokens and their types, without the placeholders at the end that only pad the model's matrices."""
    tokens = file.strings("tokenizer.ggml.tokens")
    types = file.metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not tokens or not isinstance(types, list) or len(types) != len(tokens):
        raise ModelFormatError(f"{file.path}: the tokenizer's token list is missing or damaged; fetch the file again")
    end = len(tokens)
    while end and types[end - 1] == _UNUSED and _PLACEHOLDER.fullmatch(tokens[end - 1]):
        end -= 1
    return tokens[:end], types[:end]


def _vocabulary(file: GGUFFile, tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: id for id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelFormatError(f"{file.path}: the vocabulary lists a token twice; the file is damaged")
    return vocabulary


def _pre_tokenizer(name: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    if name in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


def _sentencepiece(file: GGUFFile) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    tokens, types = _tokens_and_types(file)
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) < len(tokens):
        raise ModelFormatError(f"{file.path}: tokenizer.ggml.scores is missing or damaged; fetch the file again")
    # Runs of spaces are stored as such where they are tokens of their own, and reach the model spelled otherwise.
    known = set(tokens)
    spelled = [run if not token.strip(" ") and (run := _SPACE * len(token)) not in known else token for token in tokens]
    vocabulary = _vocabulary(file, spelled)
    unknown = next((token for token, type_id in zip(tokens, types, strict=True) if type_id == _UNKNOWN), None)
    pairs: Any = _merges_by_score(vocabulary, types, scores)
    model = models.BPE(vocab=vocabulary, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = Backend(model)
    prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if prefix else "never", split=False
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", left=1)] if prefix else steps)
    marked = [
        type_id if token == plain else _NORMAL for token, plain, type_id in zip(spelled, tokens, types, strict=True)
    ]
    _add_marked(backend, spelled, marked)
    _add_start_token(backend, file, tokens, default=True)
    return backend


def _merges_by_score(vocabulary: dict[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """All ways to make a piece of two others, the piece with the best score first; the user's own before any.

    SentencePiece joins the neighbours whose piece scores best, leftmost first, which is what BPE does with this list.
    """
    rank = {
        id: (0, float(id)) if types[id] == _USER_DEFINED else (1, -scores[id])
        for id in vocabulary.values()
        if types[id] in (_NORMAL, _USER_DEFINED)
    }
    merges = [
        (rank[id], id, -cut, left, right)
        for piece, id in vocabulary.items()
        if id in rank
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in vocabulary and (right := piece[cut:]) in vocabulary
    ]
    return [(left, right) for *_, left, right in sorted(merges)]
