"""Which device and backend a model runs on, and in which precision its weights are kept there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.config import EngineConfig
from outrider.errors import ConfigError
from outrider.models.base import CausalModel
from outrider.models.decoder import Decoder
from outrider.models.loader.load import OpenModel
from outrider.models.native import NativeDecoder
from outrider.ops import native
from outrider.ops.packing import packed_format


def resolve_device(name: str) -> torch.device:
    """The device that ``name`` means; ``auto`` takes CUDA where there is one. Raises ``ConfigError``."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is not known; use 'auto', 'cpu' or 'cuda'") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r} is not supported; use 'auto', 'cpu' or 'cuda'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r}, but torch sees no CUDA device here; use device='cpu'")
    return device


def build_model(
    opened: OpenModel,
    config: EngineConfig,
    device: torch.device,
    *,
    quantization: str | None = None,
    head_rows: Sequence[int] | None = None,
) -> CausalModel:
    """The model on the backend that ``config`` asks for.

    ``auto`` takes the native kernels on a CPU where they are built, and the torch reference elsewhere.
    ``head_rows`` trims the output to those tokens. Raises ``ConfigError`` for what does not go together.
    """
    backend = config.backend
    if backend == "auto":
        backend = "native" if device.type == "cpu" and native.available() else "reference"
    if backend == "reference":
        if quantization is not None:
            raise ConfigError(
                f"quantization={quantization!r} needs the native kernels, but this is the torch reference on "
                f"{device.type}; leave quantization out"
            )
        dtype = _reference_dtype(config.dtype, device)
        return Decoder(opened.config, opened.dense_weights(dtype), device, head_rows=head_rows)
    if device.type != "cpu":
        raise ConfigError(f"backend='native' runs on the CPU, not on device={config.device!r}; use backend='reference'")
    native.library()
    weights = opened.packed_weights(_packed_format(config.dtype, quantization), head_rows)
    kv_dtype = torch.float32 if config.dtype == "float32" else torch.float16
    return NativeDecoder(opened.config, weights, kv_dtype=kv_dtype)


def _reference_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _packed_format(dtype: str, quantization: str | None) -> str | None:
    """The packed format of all matrices; None keeps a file's own."""
    if quantization is not None:
        if dtype != "auto":
            raise ConfigError(f"dtype={dtype!r} and quantization={quantization!r} exclude each other; give one")
        return packed_format(quantization)
    if dtype == "float16":
        raise ConfigError("dtype='float16' has no native kernels; use 'auto', 'bfloat16' or 'float32'")
    return {"auto": None, "bfloat16": "bf16", "float32": "f32"}[dtype]
