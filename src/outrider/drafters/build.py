"""Build the drafters that the settings ask for. The caller passes in a drafter that needs a draft model."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from outrider import native
from outrider.config import KnownMethod, SpeculativeConfig, missing_verb
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import ConfigError


@dataclass(frozen=True)
class Drafters:
    """The drafters of one engine.

    retrieval         drafters that look text up; they cost almost no time
    model             at most one drafter that needs time: a draft model, or the user's own drafter
    name              the name of the method in statistics
    model_max_tokens  largest number of tokens that ``model`` drafts per step
    """

    retrieval: Sequence[Drafter] = ()
    model: Drafter | None = None
    name: str = "off"
    model_max_tokens: int = 0


def build_drafters(config: SpeculativeConfig, model_drafter: Drafter | None) -> Drafters:
    """The drafters for ``config``; none for ``off``.

    ``model_drafter`` runs the draft model; None if there is none. Raises ``ConfigError`` if the user's own drafter
    cannot be imported or constructed, or if it lacks a method or a name.
    """
    method = config.resolved_method
    if method == "off":
        return Drafters()
    retrieval: list[Drafter] = [PredictionDrafter()]
    model: Drafter | None = None
    most = config.num_speculative_tokens
    unavailable = config.method == "auto" and method in ("suffix", "composite") and not native.available()
    if method == "ngram" or unavailable:
        retrieval.append(NGramDrafter(min_match=config.prompt_lookup_min, max_match=config.prompt_lookup_max))
    elif method in ("suffix", "composite"):
        floor, cache_tokens = config.resolved_suffix_min_probability, config.suffix_cache_tokens
        retrieval.append(SuffixDrafter(floor=floor, cache_tokens=cache_tokens))
    if config.drafts_with_model:
        model = model_drafter
        most = min(most, config.draft_model_tokens) if method == "composite" else most
    if method not in get_args(KnownMethod):
        model = _own(config)
    return Drafters(retrieval, model, method if model is None or method == "composite" else model.name, most)


def _own(config: SpeculativeConfig) -> Drafter:
    """The user's own drafter: ``method`` itself, or a new object of the class that it names."""
    drafter: Any = config.method
    if config.plugin:
        module, _, name = config.method.partition(":")
        try:
            drafter = importlib.import_module(module)
            for part in name.split("."):
                drafter = getattr(drafter, part)
            drafter = drafter(**config.options)
        except Exception as error:
            raise ConfigError(
                f"drafter {config.method!r} cannot be created: {type(error).__name__}: {error}; "
                f"the module must be importable, and the class must accept the given options"
            ) from error
    if (verb := missing_verb(drafter)) is not None:
        raise ConfigError(f"drafter {config.method!r} lacks the method {verb!r}")
    if not isinstance(getattr(drafter, "name", None), str):
        raise ConfigError(f"drafter {config.method!r} lacks a name; give it an attribute name of type str")
    own: Drafter = drafter
    return own
