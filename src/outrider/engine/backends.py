"""Which device and backend a model runs on, and in which precision its weights are kept there."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence

from outrider import native
from outrider.config import EngineConfig
from outrider.errors import ConfigError
from outrider.extras import has_torch, require_torch
from outrider.models.base import CausalModel
from outrider.models.loader.load import OpenModel
from outrider.models.native import NativeDecoder
from outrider.models.packing import packed_format

_CUDA_DRIVER = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
_ROCM_DEVICE = "/dev/kfd"


def resolve_device(name: str) -> str:
    """The device that ``name`` means: ``cpu``, or a CUDA device as torch names it. ``auto`` takes CUDA where there is
    one, and torch to use it. Raises ``ConfigError``.

    torch is imported only where a driver is installed, since that takes longer than loading a small model.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device={name!r} is not supported; use 'auto', 'cpu' or 'cuda'")
    if name == "cpu" or (name == "auto" and not (has_torch() and _has_driver())):
        return "cpu"
    require_torch(f"device={name!r}")
    from outrider.torch_backend.device import has_cuda

    if has_cuda():
        return "cuda" if name == "auto" else name
    if name == "auto":
        return "cpu"
    raise ConfigError(f"device={name!r}, but torch sees no CUDA device here; use device='cpu'")


def _has_driver() -> bool:
    """True if there is a driver of what torch calls CUDA."""
    try:
        ctypes.CDLL(_CUDA_DRIVER)
    except OSError:
        return os.path.exists(_ROCM_DEVICE)
    return True


def build_model(
    opened: OpenModel,
    config: EngineConfig,
    device: str,
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
        backend = "native" if device == "cpu" and native.available() else "reference"
    if backend == "reference":
        if quantization is not None:
            raise ConfigError(
                f"quantization={quantization!r} needs the native kernels, but this is the torch reference on "
                f"{device}; leave quantization out"
            )
        chosen = config.backend == backend or device != "cpu"
        require_torch(f"backend={backend!r}" if chosen else f"running without native kernels ({native.describe()})")
        from outrider.torch_backend.decoder import load_decoder

        dtype = _reference_dtype(config.dtype, device)
        return load_decoder(opened, dtype=dtype, device=device, head_rows=head_rows)
    if device != "cpu":
        raise ConfigError(f"backend='native' runs on the CPU, not on device={config.device!r}; use backend='reference'")
    native.require()
    weights = opened.packed_weights(_packed_format(config.dtype, quantization), head_rows)
    return NativeDecoder(opened.config, weights, kv_dtype="float32" if config.dtype == "float32" else "float16")


def _reference_dtype(name: str, device: str) -> str:
    if name == "auto":
        return "float32" if device == "cpu" else "bfloat16"
    return name


def _packed_format(dtype: str, quantization: str | None) -> str | None:
    """The packed format of all matrices; None keeps a file's own."""
    if quantization is not None:
        if dtype != "auto":
            raise ConfigError(f"dtype={dtype!r} and quantization={quantization!r} exclude each other; give one")
        return packed_format(quantization)
    if dtype == "float16":
        raise ConfigError("dtype='float16' has no native kernels; use 'auto', 'bfloat16' or 'float32'")
    return {"auto": None, "bfloat16": "bf16", "float32": "f32"}[dtype]
