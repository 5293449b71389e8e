"""From settings to drafters, those of users included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider import native
from outrider.config import SpeculativeConfig
from outrider.drafters.base import Drafter, DraftRequest, Proposal
from outrider.drafters.build import Drafters, build_drafters
from outrider.errors import ConfigError
from outrider.request import Request
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from outrider.speculation.speculator import Speculator


class Repeater:
    """A user's own drafter: the last token again and again."""

    name = "repeater"

    def __init__(self, times: int = 2) -> None:
        self.times = times

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(tuple(entry.request.token_ids[-1:]) * min(self.times, entry.max_tokens)) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None: ...

    def forget(self, request_id: str) -> None: ...


class Nameless:
    propose = observe = forget = Repeater.forget


def broken() -> Drafter:
    raise AssertionError("this one cannot be made")


def built(**keys: Any) -> Drafters:
    return build_drafters(SpeculativeConfig(**keys), None)


def methods(drafters: Drafters) -> tuple[str, ...]:
    return Speculator(drafters.retrieval, drafters.model, name=drafters.name).methods


@pytest.mark.parametrize("method", ["ngram", "suffix", "prediction", "composite"])
def test_methods_without_a_model(method: str) -> None:
    if method in ("suffix", "composite") and not native.available():
        pytest.skip("the native library is not built")
    drafters = built(method=method)
    assert drafters.name == method
    assert methods(drafters)[:2] == ("off", method)
    assert "prediction" in methods(drafters)


def test_off_and_no_tokens_build_nothing() -> None:
    for keys in ({"method": "off"}, {"method": "ngram", "num_speculative_tokens": 0}):
        assert built(**keys) == Drafters()
        assert methods(built(**keys)) == ("off",)


@pytest.mark.parametrize(
    ("keys", "most"),
    [
        ({"method": "draft_model"}, 15),
        ({"method": "draft_model", "num_speculative_tokens": 3}, 3),
        ({"method": "composite"}, 8),
        ({"method": "auto"}, 8),
        ({"method": "auto", "num_speculative_tokens": 3}, 3),
    ],
)
def test_the_model_drafter_and_the_most_tokens_that_it_drafts(keys: dict[str, Any], most: int) -> None:
    model = Repeater()
    drafters = build_drafters(SpeculativeConfig(model="draft", **keys), model)
    assert drafters.model is model
    assert drafters.model_max_tokens == most


@pytest.mark.parametrize(
    ("keys", "floor"),
    [({}, 0.2), ({"adaptive": False}, 0.03), ({"adaptive": False, "suffix_min_probability": 0.5}, 0.5)],
)
def test_doubtful_tokens_are_left_out_where_rows_have_a_price(keys: dict[str, Any], floor: float) -> None:
    assert SpeculativeConfig(method="suffix", **keys).resolved_suffix_min_probability == floor
    if not native.available():
        pytest.skip("the native library is not built")
    text = Request("r", (1, *range(2, 40), 1), SamplingParams(), noise_seed=0, max_total_tokens=100)
    suffix = built(method="suffix", **keys).retrieval[-1]
    (proposal,) = suffix.propose(
        [DraftRequest(text, 64, KeyedNoise(0), RequestSampler(SamplingParams(), [0], vocab_size=1))]
    )
    assert proposal.chances is not None
    assert floor <= min(proposal.chances) < floor + 0.05


def test_auto_without_a_model_looks_at_text_seen_before() -> None:
    assert methods(built(method="auto")) == ("off", "suffix", "prediction") + (() if native.available() else ("ngram",))


def test_an_own_drafter_as_object_and_by_name() -> None:
    for keys in (
        {"method": Repeater(3)},
        {"method": f"{__name__}:Repeater", "options": {"times": 3}},
    ):
        drafters = built(**keys)
        assert isinstance(drafters.model, Repeater)
        assert drafters.name == "repeater"
        assert methods(drafters) == ("off", "repeater", "prediction")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "sufix"}, r"method='sufix': must be one of auto, ngram, suffix"),
        ({"method": 7}, "must have the methods propose, observe and forget"),
        ({"method": "no_such_module:Drafter"}, "'no_such_module:Drafter' cannot be created: ModuleNotFoundError"),
        ({"method": f"{__name__}:Missing"}, "cannot be created: AttributeError"),
        ({"method": f"{__name__}:Repeater", "options": {"tines": 1}}, "unexpected keyword argument 'tines'"),
        ({"method": f"{__name__}:Nameless"}, "lacks a name"),
        ({"method": f"{__name__}:broken"}, "cannot be created: AssertionError"),
        ({"method": "ngram", "options": {"a": 1}}, "options are for method='package.module:Class'"),
        ({"method": "suffix", "model": "m"}, "method='suffix' takes no draft model"),
        ({"method": f"{__name__}:Repeater", "model": "m"}, "takes no draft model"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(**keys)
