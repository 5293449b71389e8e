"""From what the user calls a model to the file or folder on disk. Reads no weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.models.loader.packaged import PACKAGED_MODELS, Progress, ensure

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]


@dataclass(frozen=True)
class ModelSource:
    """A model on disk: one ``.gguf`` file, or a folder with ``config.json``; ``name`` is what to call it."""

    kind: Literal["gguf", "huggingface"]
    path: Path
    name: str

    def files(self) -> list[tuple[str, int, int]]:
        """Path, bytes and time of the last change (ns) of every file with weights: other weights, another list."""
        paths = [self.path] if self.kind == "gguf" else sorted(self.path.glob("*.safetensors"))
        return [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def resolve(reference: str, progress: Progress | None = None) -> ModelSource:
    """Find the model that ``reference`` names, fetching it if it is an alias or hub id that is not here yet.

    Tried in this order: built-in alias, ``.gguf`` file, folder, hub id. Raises ``ModelNotFoundError``, or
    ``ModelFormatError`` for a file or folder that is no model.
    """
    if model := PACKAGED_MODELS.get(reference.lower()):
        return ModelSource("gguf", ensure(model, progress), model.alias)
    path = Path(reference).expanduser()
    if path.is_file():
        return _file(path)
    if reference and path.is_dir():
        return _folder(path, path.resolve().name)
    if _HUB_ID.fullmatch(reference) and not reference.endswith(".gguf"):
        return _folder(_from_hub(reference), reference)
    raise ModelNotFoundError(
        f"no model {reference!r}; give an alias ({', '.join(PACKAGED_MODELS)}), an existing .gguf file, "
        "a folder with config.json, or a hub id such as 'org/name'"
    )


def _file(path: Path) -> ModelSource:
    if path.suffix.lower() != ".gguf":
        raise ModelFormatError(
            f"{str(path)!r} is not a .gguf file; give one, or the folder that holds config.json and safetensors"
        )
    return ModelSource("gguf", path, path.stem)


def _folder(path: Path, name: str) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource("huggingface", path, name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource("gguf", files[0], name)
    if files:
        raise ModelNotFoundError(f"folder {str(path)!r} holds {len(files)} .gguf files; name one of them")
    raise ModelNotFoundError(f"folder {str(path)!r} holds neither config.json nor a .gguf file")


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except Exception as error:  # the library raises errors of half a dozen unrelated classes
        if constants.HF_HUB_OFFLINE:
            raise ModelNotFoundError(
                f"hub model {hub_id!r} is not in the local hub cache and HF_HUB_OFFLINE is set; "
                "unset it to download the model, or give a folder or .gguf file"
            ) from None
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelNotFoundError(
            f"cannot get hub model {hub_id!r}: {reason}; check the name, the network and your hub login, "
            "or give a folder or .gguf file"
        ) from None
