"""Open a model by reference: the one entrance to this folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from outrider.models.config import ModelConfig
from outrider.models.loader import gguf, gguf_tokenizer
from outrider.models.loader.gguf_file import GGUFFile
from outrider.models.loader.packaged import Progress
from outrider.models.loader.resolve import ModelSource, resolve
from outrider.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from outrider.models.loader.packed import PackedWeights


@dataclass(frozen=True)
class OpenModel:
    """A model whose configuration and tokenizer are read and whose weights are still in the file."""

    config: ModelConfig
    tokenizer: Tokenizer
    source: ModelSource
    file: GGUFFile | None = None
    """The open file of a model of kind ``gguf``."""

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.source.name

    def dense_weights(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Every canonical name and its weight, one after another: float32, float16, or uint16 (bits of bfloat16).

        Those of a folder are views of its files. Raises ``ModelFormatError``.
        """
        if self.file is not None:
            return gguf.read_weights(self.file, self.config)
        from outrider.models.loader import huggingface

        return iter(huggingface.open_weights(self.source.path, self.config).items())

    def packed_weights(self, weight_format: str | None = None, head_rows: Sequence[int] | None = None) -> PackedWeights:
        """Every weight for the native kernels: matrices packed, vectors float32. Raises ``ModelFormatError``.

        None keeps a GGUF file's own formats and packs others as bf16; a packed format packs all matrices so.
        ``head_rows`` makes ``lm_head`` of those tokens' rows alone.
        """
        from outrider.models.loader import packed

        if self.file is not None:
            return packed.from_gguf(self.file, self.config, weight_format, head_rows)
        return packed.from_huggingface(self.source.path, self.config, weight_format, head_rows)


def open_model(reference: str, progress: Progress | None = None) -> OpenModel:
    """Find and open the model that ``reference`` names: alias, ``.gguf`` file, folder or hub id.

    Raises ``ModelNotFoundError`` if there is no such model, ``ModelFormatError`` if it is damaged or not supported.
    """
    source, file = resolve(reference, progress), None
    if source.kind == "gguf":
        file = GGUFFile(source.path)
        config = gguf.read_config(file)
        tokenizer = gguf_tokenizer.load_tokenizer(file)
    else:
        from outrider.models.loader import huggingface

        config = huggingface.read_config(source.path)
        tokenizer = huggingface.load_tokenizer(source.path, config)
    return OpenModel(replace(config, eos_token_ids=tokenizer.eos_token_ids), tokenizer, source, file)
