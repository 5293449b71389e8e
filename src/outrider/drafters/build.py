"""From settings to drafters. What needs a model is handed in, because models are loaded above this layer."""

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
    """Drafters that look text up, at most one that spends time, the name of the whole, and the most tokens that the
    latter drafts in a round.
    """

    retrieval: Sequence[Drafter] = ()
    model: Drafter | None = None
    name: str = "off"
    model_max_tokens: int = 0


def build_drafters(config: SpeculativeConfig, model_drafter: Drafter | None) -> Drafters:
    """The drafters that ``config`` asks for; none for ``off``.

    ``model_drafter`` is that of the draft model, where one is asked for. Raises ``ConfigError`` if a class of the
    user's own cannot be imported or made.
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
    """The user's own drafter: an object as it is, or an object of the class that is named."""
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
                f"drafter {config.method!r} cannot be made: {type(error).__name__}: {error}; "
                f"the module must be importable and the class take the given options"
            ) from error
    if (verb := missing_verb(drafter)) is not None:
        raise ConfigError(f"drafter {config.method!r} lacks the method {verb!r}")
    if not isinstance(getattr(drafter, "name", None), str):
        raise ConfigError(f"drafter {config.method!r} lacks a name; give it an attribute name of type str")
    own: Drafter = drafter
    return own
