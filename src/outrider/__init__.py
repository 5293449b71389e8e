"""Outrider: an inference engine in which speculative decoding is the decode loop itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from outrider.config import EngineConfig, SpeculativeConfig
    from outrider.drafters.base import Drafter, DraftRequest, Proposal
    from outrider.errors import (
        ConfigError,
        EngineUnavailableError,
        IntegrityError,
        InvalidRequestError,
        ModelFormatError,
        ModelNotFoundError,
        OutriderError,
        QueueFullError,
        RequestFailedError,
        UserError,
        VocabularyMismatchError,
    )
    from outrider.llm import LLM
    from outrider.outputs import (
        CompletionOutput,
        RequestMetrics,
        RequestOutput,
        SpecDecodeStats,
        SpeculationStatus,
        StreamPiece,
    )
    from outrider.sampling_params import SamplingParams, StructuredOutputs

_MODULES = {
    "outrider.llm": ("LLM",),
    "outrider.sampling_params": ("SamplingParams", "StructuredOutputs"),
    "outrider.config": ("EngineConfig", "SpeculativeConfig"),
    "outrider.outputs": (
        "CompletionOutput",
        "RequestMetrics",
        "RequestOutput",
        "SpecDecodeStats",
        "SpeculationStatus",
        "StreamPiece",
    ),
    "outrider.drafters.base": ("DraftRequest", "Drafter", "Proposal"),
    "outrider.errors": (
        "ConfigError",
        "EngineUnavailableError",
        "IntegrityError",
        "InvalidRequestError",
        "ModelFormatError",
        "ModelNotFoundError",
        "OutriderError",
        "QueueFullError",
        "RequestFailedError",
        "UserError",
        "VocabularyMismatchError",
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "DraftRequest",
    "Drafter",
    "EngineConfig",
    "EngineUnavailableError",
    "IntegrityError",
    "InvalidRequestError",
    "ModelFormatError",
    "ModelNotFoundError",
    "OutriderError",
    "Proposal",
    "QueueFullError",
    "RequestFailedError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SpecDecodeStats",
    "SpeculationStatus",
    "SpeculativeConfig",
    "StreamPiece",
    "StructuredOutputs",
    "UserError",
    "VocabularyMismatchError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that ``import outrider`` stays instant."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
