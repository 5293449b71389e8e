"""The safetensors container: the bits of the library's own files, and what is wrong with a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from outrider.errors import ModelFormatError
from outrider.models.loader.safetensors_file import SafetensorsFile
from outrider.torch_backend.decoder import as_tensor

TENSORS = {
    "wide": torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7,
    "half": torch.arange(6, dtype=torch.float16).reshape(2, 3) / 7,
    "brain": torch.arange(10, dtype=torch.bfloat16).reshape(5, 2) / 7,
    "vector": torch.tensor([1.5, -2.0]),
    "whole": torch.arange(4),
}


def write(path: Path, entries: Any, data: bytes = b"\0" * 64) -> Path:
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def test_views_have_the_bits_that_were_stored(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "model.safetensors")
    assert file.tensors.keys() == TENSORS.keys()
    for name in ("wide", "half", "brain", "vector"):
        view = file.view(name)
        assert not view.flags.owndata
        assert view.dtype == {"wide": np.float32, "half": np.float16, "brain": np.uint16}.get(name, np.float32)
        assert torch.equal(as_tensor(view, TENSORS[name].dtype), TENSORS[name])
        assert torch.equal(as_tensor(view, torch.float32), TENSORS[name].float())
    with pytest.raises(ModelFormatError, match=r"tensor 'whole' \[4\] is stored as I64; only F32, F16, BF16 are read"):
        file.view("whole")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}, "lies at bytes"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]}, "lies at bytes"),
        ({"dtype": "BF16", "shape": [-1, -4], "data_offsets": [0, 8]}, "lies at bytes"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 80]}, "16 of [0-9]+ bytes are missing"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0]}, "header is damaged"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16, 32]}, "header is damaged"),
        ({"dtype": "F32", "shape": ["x"], "data_offsets": [0, 16]}, "header is damaged"),
        ({"dtype": "F32", "data_offsets": [0, 16]}, "header is damaged"),
        ([], "header is damaged"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(tmp_path: Path, entry: Any, said: str) -> None:
    with pytest.raises(ModelFormatError, match=said) as caught:
        SafetensorsFile(write(tmp_path / "model.safetensors", {"a": entry}))
    assert "\n" not in str(caught.value)


def test_a_header_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelFormatError, match="header is damaged"):
        SafetensorsFile(path)
    with pytest.raises(ModelFormatError, match="cannot be read: No such file"):
        SafetensorsFile(tmp_path / "none.safetensors")
