"""Devices as torch sees them."""

from __future__ import annotations

import torch


def has_cuda() -> bool:
    """True if torch can use a CUDA device here."""
    return torch.cuda.is_available()


def free_memory(device: str) -> int:
    """Bytes that are free on a CUDA device."""
    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def set_num_threads(threads: int) -> None:
    """Threads of torch's own CPU kernels."""
    torch.set_num_threads(threads)


def describe() -> dict[str, str | int | None]:
    """What torch has here, for ``outrider doctor``."""
    cuda = torch.cuda.is_available()
    return {
        "device_name": torch.cuda.get_device_name(0) if cuda else None,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
