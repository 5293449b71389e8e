"""A seeded request over SmolLM2 has one answer: whoever drafts, how far, and who was there before or is beside it."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import native
from outrider.drafters.base import Drafter
from outrider.engine.engine import Engine
from outrider.models.loader.load import OpenModel
from outrider.models.native import NativeDecoder
from outrider.request import Request
from outrider.sampling_params import SamplingParams
from tests.integration.native_engines import DRAFTERS, PROMPTS, engine_over
from tests.unit.engine.helpers import Composite

pytestmark = [pytest.mark.model, pytest.mark.skipif(not native.available(), reason=native.describe())]

PROMPT = PROMPTS[4]
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=42, max_tokens=8, ignore_eos=True)
UNSEEDED = SEEDED.model_copy(update={"seed": None})
NEIGHBOURS = [
    UNSEEDED,
    SEEDED.model_copy(update={"temperature": 0.0}),
    SEEDED.model_copy(update={"seed": 7, "logprobs": 2, "frequency_penalty": 0.5}),
]
MANY = 100


class Bench:
    """An engine over SmolLM2, and the request that is watched in it."""

    def __init__(
        self, target: NativeDecoder, opened: OpenModel, drafter: Drafter | Composite | None, **settings: Any
    ) -> None:
        self.opened = opened
        self.engine: Engine = engine_over(target, opened, drafter, **settings)
        self.added = 0

    def add(self, prompt: str, params: SamplingParams, **settings: Any) -> Request:
        self.added += 1
        return self.engine.add_request(str(self.added), self.opened.tokenizer.encode(prompt), params, **settings)

    def step(self) -> None:
        self.engine.step()
        self.engine.check_integrity()

    def drain(self) -> None:
        while self.engine.has_requests:
            self.step()
        assert self.engine.runner.kv.num_free_blocks == self.engine.runner.kv.num_blocks

    def answer(self) -> list[int]:
        request = self.add(PROMPT, SEEDED)
        self.drain()
        return tokens(request)


def tokens(request: Request) -> list[int]:
    assert request.error is None
    assert request.num_output_tokens == SEEDED.max_tokens
    return request.output_token_ids


@pytest.fixture(scope="module")
def expected(target: NativeDecoder, opened: OpenModel) -> list[int]:
    """Alone, with speculation off."""
    return Bench(target, opened, None).answer()


@pytest.fixture(params=DRAFTERS)
def drafter(request: pytest.FixtureRequest, draft: NativeDecoder, opened: OpenModel) -> Drafter | Composite | None:
    made: Drafter | Composite | None = DRAFTERS[request.param](draft, opened)
    return made


def test_the_seed_matters(target: NativeDecoder, opened: OpenModel, expected: list[int]) -> None:
    bench = Bench(target, opened, None)
    other = bench.add(PROMPT, SEEDED.model_copy(update={"seed": 43}))
    bench.drain()
    assert tokens(other) != expected


@pytest.mark.parametrize(
    ("name", "k"),
    [*(("draft_model", k) for k in range(9)), *(("suffix", k) for k in (1, 4, 8)), ("tree of width 3", 2)],
)
def test_k(
    name: str, k: int, target: NativeDecoder, draft: NativeDecoder, opened: OpenModel, expected: list[int]
) -> None:
    bench = Bench(target, opened, DRAFTERS[name](draft, opened), k=k)
    assert bench.answer() == expected


def test_a_batch_of_eight(
    target: NativeDecoder, opened: OpenModel, drafter: Drafter | Composite | None, expected: list[int]
) -> None:
    bench = Bench(target, opened, drafter)
    beside = [bench.add(prompt, NEIGHBOURS[i % 3]) for i, prompt in enumerate(PROMPTS[:3])]
    watched = bench.add(PROMPT, SEEDED)
    beside += [bench.add(prompt, NEIGHBOURS[i % 3]) for i, prompt in enumerate([*PROMPTS[:3], PROMPTS[7]])]
    assert len(beside) == 7
    bench.drain()
    assert tokens(watched) == expected
    assert all(request.error is None for request in beside)


@pytest.mark.parametrize("name", ["ngram", "composite"])
def test_after_a_hundred_other_requests(
    name: str, target: NativeDecoder, draft: NativeDecoder, opened: OpenModel, expected: list[int]
) -> None:
    """What the drafters remember of them, and of the very same request, changes nothing."""
    bench = Bench(target, opened, DRAFTERS[name](draft, opened))
    for number in range(MANY - 1):
        params = NEIGHBOURS[number % 3].model_copy(update={"max_tokens": 2})
        bench.add(f"{number}: the quick", params)
    bench.drain()
    assert bench.answer() == expected
    assert bench.added == MANY
    assert bench.answer() == expected


def test_neighbours_that_abort(
    target: NativeDecoder, opened: OpenModel, drafter: Drafter | Composite | None, expected: list[int]
) -> None:
    bench = Bench(target, opened, drafter)
    twin = bench.add(PROMPT, SEEDED)
    other = bench.add(PROMPTS[3], UNSEEDED)
    watched = bench.add(PROMPT, SEEDED)
    for leaving in (other, twin):
        bench.step()
        bench.step()
        assert not watched.finished
        assert bench.engine.abort(leaving.request_id)
    bench.drain()
    assert tokens(watched) == expected
    assert twin.output_token_ids == expected[: twin.num_output_tokens]


def test_preemption(
    target: NativeDecoder, opened: OpenModel, drafter: Drafter | Composite | None, expected: list[int]
) -> None:
    """The youngest gives way when the blocks are out, and begins anew."""
    bench = Bench(target, opened, drafter, num_blocks=9, block_size=4)
    older = [bench.add(PROMPTS[0], SEEDED.model_copy(update={"seed": seed})) for seed in (1, 2)]
    watched = bench.add(PROMPT, SEEDED)
    bench.drain()
    assert watched.num_preemptions > 0
    assert tokens(watched) == expected
    assert all(request.num_preemptions == 0 for request in older)
