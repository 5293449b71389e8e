"""Which engines take part and how their processes are started. Measures nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.errors import ConfigError

DRAFT_MODEL_MODE = "draft_model"
DRAFT_MODEL_KEYS = ("method", "model", "quantization", "draft_vocab_size")
"""Keys of ``SpeculativeConfig`` that a process without the draft model does not get."""


@dataclass(frozen=True)
class Peer:
    """Another engine: its adapter in ``peers/``, how to install what that needs, and where its Python is found.

    processes  a mode for each process to start, where modes are fixed at loading; else one process has all of them
    """

    adapter: str
    todo: str
    variable: str = "OUTRIDER_PEERS_PYTHON"
    folder: str = ".venv-peers"
    processes: tuple[str, ...] = ()

    def python(self) -> str | None:
        """The Python that ``variable`` names, else that of ``folder`` here; None without.

        Raises ``ConfigError`` if the variable names no file.
        """
        if chosen := os.environ.get(self.variable):
            if not Path(chosen).is_file():
                raise ConfigError(f"{self.variable}={chosen!r} is no file; give the python of the peers' environment")
            return chosen
        python = Path(self.folder) / "bin" / "python"
        return str(python.absolute()) if python.is_file() else None


PEERS = {
    "llama.cpp": Peer("llama_cpp_worker", "make peers"),
    "transformers": Peer("transformers_worker", "make peers"),
    "openvino": Peer("openvino_worker", "make peers-openvino"),
    "vllm": Peer(
        "vllm_worker", "make peers-vllm", "OUTRIDER_VLLM_PYTHON", ".venv-vllm", ("", "ngram", DRAFT_MODEL_MODE)
    ),
}


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

    @property
    def title(self) -> str:
        """What the process is called: the engine's name, and its modes if not all are measured."""
        return self.label(", ".join(self.modes or ()))

    def owns(self, name: str, labels: Sequence[str]) -> bool:
        """Whether figures of engine ``name`` in modes ``labels`` are this process's."""
        own = None if self.modes is None else [self.label(mode) for mode in self.modes]
        return name == self.name and own in (None, list(labels))


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
    # Repeated rounds must not find the prompt of the one before.
    settings = {**settings, "prefix_caching": False}
    if whole.resolved_method == "off":
        alone = {"method": "off"}
    specs = [EngineSpec("outrider", command, env, settings={**settings, "speculative": alone}, peer=False)]
    if whole.drafts_with_model:
        drafting = {**settings, "speculative": {**speculative, "method": "draft_model"}}
        modes = ("draft_model",)
        specs.append(
            EngineSpec("outrider", command, env, settings=drafting, modes=modes, measure_passes=False, peer=False)
        )
    return specs


def peer_specs(names: Sequence[str], draft_model: str | None, threads: int) -> list[EngineSpec]:
    """The processes of the named peers; those without a Python of theirs cannot be run, and they are missing.

    Raises ``ConfigError`` if a variable that should name a Python names no file.
    """
    serve = Path(__file__).parent / "peers" / "serve.py"
    specs = []
    for name in names:
        peer = PEERS[name]
        command = (peer.python() or str(Path(peer.folder) / "bin" / "python"), str(serve), peer.adapter)
        whole = EngineSpec(
            name, command, _environment(threads, inherit_path=False), draft_model=draft_model, todo=peer.todo
        )
        modes = [mode for mode in peer.processes if mode != DRAFT_MODEL_MODE or draft_model is not None]
        specs += [
            replace(whole, settings={"mode": mode}, modes=(mode,), measure_passes=not mode) for mode in modes
        ] or [whole]
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
