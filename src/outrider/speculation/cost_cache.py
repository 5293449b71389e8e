"""Measured pass costs kept on disk, so that only the first start of a model on a machine measures them in full.

A later start times a few passes. If they have the shape of the kept table, it is taken, scaled to today's speed of the
machine; the policy goes on learning anyway. If not, everything is measured anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from outrider.models.loader.cache import atomic_file
from outrider.runner.model_runner import ModelRunner
from outrider.speculation.costs import PassCosts
from outrider.speculation.measure import measure_passes, pass_seconds

logger = logging.getLogger(__name__)

_CHECKED_ROWS = (4, 1)
_TRIES = 3
"""Another process can lengthen a pass, so a check that fails is repeated before everything is measured again."""
_SHAPE_TOLERANCE = 0.25
"""The kept table is taken if the ratio of the checked passes is within this share of its own."""


def costs_of(runner: ModelRunner, folder: Path | None, key: Mapping[str, object], *, seconds: float) -> PassCosts:
    """Pass costs of the runner's model: from ``folder`` if it has them for ``key`` and they still hold, else measured.

    ``key`` names whatever the costs depend on: machine, kernels, threads, model, formats. Measuring takes about
    ``seconds``. A folder that cannot be read or written only costs the measuring. None keeps nothing.
    """
    path = None if folder is None else folder / f"{_digest(key)}.json"
    kept = None if path is None else _read(path)
    if kept is not None:
        rows = [each for each in _CHECKED_ROWS if each <= runner.kv.capacity]
        pass_seconds(runner, rows[0])  # the first pass touches weights and caches for the first time
        for _ in range(_TRIES):
            if kept.rescale({each: pass_seconds(runner, each) for each in rows}, _SHAPE_TOLERANCE):
                return kept
        logger.info("the machine's pass costs have changed since they were measured; measuring again")
    costs = measure_passes(runner, seconds=seconds)
    if path is not None:
        _write(path, costs, key)
    return costs


def _digest(key: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _read(path: Path) -> PassCosts | None:
    try:
        return PassCosts.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.info("%s is not a table of pass costs (%s); measuring again", path, error)
        return None


def _write(path: Path, costs: PassCosts, key: Mapping[str, object]) -> None:
    """Replace the file in one move, so that a reader never sees half of it."""
    text = json.dumps({**costs.to_dict(), "key": key}, default=str, indent=1)
    try:
        with atomic_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        logger.info("pass costs are not kept: %s", error)
