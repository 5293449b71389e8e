"""Which engines take part and how their processes are started. Measures nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.errors import ConfigError

PEERS = {
    "llama.cpp": ("llama_cpp_worker", "make peers"),
    "transformers": ("transformers_worker", "make peers"),
    "openvino": ("openvino_worker", "make peers-openvino"),
}
"""Name -> the adapter in ``peers/`` and how to install what it needs."""

DRAFT_MODEL_KEYS = ("method", "model", "quantization", "draft_vocab_size")
"""Keys of ``SpeculativeConfig`` that a process without the draft model does not get."""

PEERS_PYTHON = "OUTRIDER_PEERS_PYTHON"
PEERS_FOLDER = ".venv-peers"


@dataclass(frozen=True)
class EngineSpec:
    """One process.

    modes           those of its modes that are measured; None for all it has
    measure_passes  False where prompt and forward times would repeat another process's
    todo            what to do if the engine is not installed
    """

    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    draft_model: str | None = None
    settings: dict[str, Any] | None = None
    modes: tuple[str, ...] | None = None
    measure_passes: bool = True
    todo: str = ""
    peer: bool = True

    def label(self, mode: str) -> str:
        """What a mode of this engine is called in results."""
        return f"{self.name} {mode}".strip()


def parse_peers(text: str) -> list[str]:
    """Names from ``a,b``; ``none`` is none. Raises ``ConfigError`` for a name that is not a peer's."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["none"]:
        return []
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"--peers {name!r} is not known; use {', '.join(PEERS)}, or none alone")
    if not names:
        raise ConfigError(f"--peers {text!r} names nothing; use {', '.join(PEERS)}, or none")
    return list(dict.fromkeys(names))


def peers_python() -> str | None:
    """The Python in which peers are installed: ``$OUTRIDER_PEERS_PYTHON``, else ``.venv-peers`` here; None without.

    Raises ``ConfigError`` if the variable names no file.
    """
    if chosen := os.environ.get(PEERS_PYTHON):
        if not Path(chosen).is_file():
            raise ConfigError(f"{PEERS_PYTHON}={chosen!r} is no file; give the python of the peers' environment")
        return chosen
    python = Path(PEERS_FOLDER) / "bin" / "python"
    return str(python.absolute()) if python.is_file() else None


def outrider_specs(speculative: dict[str, Any], settings: dict[str, Any], threads: int) -> list[EngineSpec]:
    """Outrider without a draft model, off and ngram, and in a process of its own with the draft model, if there is one.

    ``speculative`` are keys of ``SpeculativeConfig`` and ``settings`` of ``EngineConfig``. Raises ``ConfigError`` for
    what they do not allow.
    """
    command = (sys.executable, "-m", "outrider.bench.outrider_worker")
    env = _environment(threads, inherit_path=True)
    whole = SpeculativeConfig(**speculative)
    EngineConfig(model="checked before any process starts", speculative=whole, **settings)
    alone: dict[str, Any] = {k: v for k, v in speculative.items() if k not in DRAFT_MODEL_KEYS} | {"method": "ngram"}
    if whole.resolved_method == "off":
        alone = {"method": "off"}
    specs = [EngineSpec("outrider", command, env, settings={**settings, "speculative": alone}, peer=False)]
    if whole.resolved_method == "draft_model":
        drafting = {**settings, "speculative": speculative}
        modes = ("draft_model",)
        specs.append(
            EngineSpec("outrider", command, env, settings=drafting, modes=modes, measure_passes=False, peer=False)
        )
    return specs


def peer_specs(names: Sequence[str], python: str | None, draft_model: str | None, threads: int) -> list[EngineSpec]:
    """The processes of the named peers; without a ``python`` their commands cannot be run, and they are missing."""
    serve = Path(__file__).parent / "peers" / "serve.py"
    specs = []
    for name in names:
        adapter, todo = PEERS[name]
        command = (python or str(Path(PEERS_FOLDER) / "bin" / "python"), str(serve), adapter)
        specs.append(
            EngineSpec(name, command, _environment(threads, inherit_path=False), draft_model=draft_model, todo=todo)
        )
    return specs


def _environment(threads: int, *, inherit_path: bool) -> dict[str, str]:
    """This process's environment with the number of threads fixed for every runtime, and without the network."""
    env = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OUTRIDER_NUM_THREADS"):
        env[name] = str(threads)
    env.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    if not inherit_path:  # what is on our path is none of the peers' business
        env.pop("PYTHONPATH", None)
    return env
