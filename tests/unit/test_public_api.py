"""What ``outrider`` offers by name, and that looking at it imports nothing heavy."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import outrider
from outrider import errors
from outrider.drafters import base

PUBLIC = {
    "LLM",
    "SamplingParams",
    "StructuredOutputs",
    "EngineConfig",
    "SpeculativeConfig",
    "RequestOutput",
    "CompletionOutput",
    "RequestMetrics",
    "SpecDecodeStats",
    "SpeculationStatus",
    "StreamPiece",
    "Drafter",
    "DraftRequest",
    "Proposal",
    "OutriderError",
    "UserError",
    "ConfigError",
    "InvalidRequestError",
    "ModelNotFoundError",
    "ModelFormatError",
    "VocabularyMismatchError",
    "RequestFailedError",
    "QueueFullError",
    "EngineUnavailableError",
    "IntegrityError",
    "__version__",
}


def test_the_public_names() -> None:
    assert set(outrider.__all__) == PUBLIC
    assert set(dir(outrider)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(outrider, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = outrider.Nonsense


def test_every_error_is_public_and_stands_in_the_tree_at_the_top_of_errors() -> None:
    found = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    assert found.keys() <= PUBLIC
    for name, error in found.items():
        assert getattr(outrider, name) is error
        assert issubclass(error, outrider.OutriderError)
        assert name in (errors.__doc__ or "")


def test_a_drafter_can_be_written_from_public_names() -> None:
    assert outrider.Drafter is base.Drafter
    assert outrider.DraftRequest is base.DraftRequest
    assert outrider.Proposal is base.Proposal


def test_looking_at_the_names_imports_nothing_heavy() -> None:
    code = (
        "import sys, outrider\n"
        "dir(outrider), outrider.__all__, outrider.__version__\n"
        "outrider.InvalidRequestError, outrider.OutriderError\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from outrider import *\n"
        "assert LLM and Drafter and ConfigError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
