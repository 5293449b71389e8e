"""Outrider: an inference engine in which speculative decoding is the decode loop itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from outrider.config import EngineConfig, SpeculativeConfig
    from outrider.llm import LLM
    from outrider.outputs import CompletionOutput, RequestOutput, SpecDecodeStats, StreamPiece
    from outrider.sampling_params import SamplingParams, StructuredOutputs

_HOME = {
    "LLM": "outrider.llm",
    "SamplingParams": "outrider.sampling_params",
    "StructuredOutputs": "outrider.sampling_params",
    "EngineConfig": "outrider.config",
    "SpeculativeConfig": "outrider.config",
    "RequestOutput": "outrider.outputs",
    "CompletionOutput": "outrider.outputs",
    "StreamPiece": "outrider.outputs",
    "SpecDecodeStats": "outrider.outputs",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "SpecDecodeStats",
    "SpeculativeConfig",
    "StreamPiece",
    "StructuredOutputs",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that ``import outrider`` stays instant."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")
