"""Tokenizers of Hugging Face folders without ``tokenizer.json``, converted by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import ModelFormatError

if TYPE_CHECKING:
    import tokenizers


def converted(folder: Path) -> tokenizers.Tokenizer:
    """The folder's tokenizer as the ``tokenizers`` library has it; no code of the folder is run.

    Raises ``ModelFormatError`` if it cannot be converted.
    """
    from transformers import AutoTokenizer

    try:
        backend: tokenizers.Tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        ).backend_tokenizer
    except Exception as error:  # a third-party conversion of untrusted data: anything may come
        reason = " ".join(str(error).split())
        raise ModelFormatError(f"{folder}: its tokenizer cannot be converted: {reason}") from None
    return backend
