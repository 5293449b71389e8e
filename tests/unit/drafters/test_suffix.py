"""The suffix drafter over requests: its own text, what others said, what is forgotten, what it costs in memory."""

from __future__ import annotations

import pytest

from outrider import native
from outrider.drafters.base import DraftRequest
from outrider.drafters.suffix import SuffixDrafter
from outrider.request import Request
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams
from tests.toy import random_table
from tests.unit.engine.helpers import GREEDY, run, toy_engine

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

NOISE = KeyedNoise(0)
DISTRIBUTION = RequestSampler(SamplingParams(), [0], vocab_size=1)


def request_of(tokens: list[int], name: str = "r") -> Request:
    return Request(name, tuple(tokens), SamplingParams(), noise_seed=0, max_total_tokens=100_000)


def proposed(drafter: SuffixDrafter, request: Request, k: int = 4) -> tuple[int, ...]:
    (proposal,) = drafter.propose([DraftRequest(request, k, NOISE, DISTRIBUTION)])
    assert proposal.probs is None
    return proposal.token_ids


def end(drafter: SuffixDrafter, request: Request, output: list[int]) -> None:
    """The request says ``output`` and ends."""
    request.token_ids += output
    request.finish("length")
    drafter.forget(request.request_id)


def test_the_own_text_as_it_grows() -> None:
    drafter = SuffixDrafter()
    request = request_of([1, 2, 3, 4])
    assert proposed(drafter, request) == ()
    request.token_ids += [5, 1, 2, 3]
    assert proposed(drafter, request) == (4, 5, 1, 2)
    assert proposed(drafter, request, k=2) == (4, 5)


def test_outputs_of_ended_requests_help_later_ones() -> None:
    drafter = SuffixDrafter()
    first = request_of([1], "first")
    proposed(drafter, first)
    end(drafter, first, [10, 11, 12, 13, 14])
    assert proposed(drafter, request_of([7, 10, 11, 12], "second")) == (13, 14)
    assert proposed(drafter, request_of([7, 1], "third")) == (), "a prompt is not an output"


def test_a_preempted_request_leaves_nothing_behind() -> None:
    drafter = SuffixDrafter()
    request = request_of([1], "first")
    request.token_ids += [10, 11, 12]
    proposed(drafter, request)
    drafter.forget("first")
    drafter.forget("never seen")
    assert proposed(drafter, request_of([10, 11], "second")) == ()
    assert proposed(drafter, request) == (), "its own text is indexed anew"
    request.token_ids += [10]
    assert proposed(drafter, request) == (11, 12, 10, 11)


def test_without_a_cache_nothing_is_kept() -> None:
    drafter = SuffixDrafter(cache_tokens=0)
    first = request_of([1], "first")
    proposed(drafter, first)
    end(drafter, first, [10, 11, 12])
    assert proposed(drafter, request_of([10, 11], "second")) == ()


def test_memory_is_bounded_and_the_oldest_output_goes_first() -> None:
    drafter = SuffixDrafter(cache_tokens=4096)
    for number in range(300):
        request = request_of([1], str(number))
        proposed(drafter, request)
        end(drafter, request, [1000 * number + place for place in range(100)])
    assert drafter.nbytes < 40 * 4096
    assert proposed(drafter, request_of([299_010, 299_011], "late")) == (299_012, 299_013, 299_014, 299_015)
    assert proposed(drafter, request_of([10, 11], "early")) == ()


def test_a_request_gets_no_more_room_than_its_text_can_need() -> None:
    drafter = SuffixDrafter(cache_tokens=0)
    request = Request("r", tuple(range(3000)), SamplingParams(), noise_seed=0, max_total_tokens=3004)
    proposed(drafter, request)
    assert drafter.nbytes < 37 * 3004
    request.token_ids += [10, 11, 12, 13]
    assert proposed(drafter, request) == (14, 15, 16, 17)


def test_a_floor_shortens_what_is_doubtful() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    long, short = (proposed(SuffixDrafter(floor=floor), request_of(text), k=8) for floor in (0.1, 0.3))
    assert long == (2, 3, 4, 5, 6, 7, 8, 9)
    assert short == long[: len(short)]
    assert 0 < len(short) < len(long)


def test_in_an_engine_it_changes_nothing_but_the_number_of_steps() -> None:
    distribution = random_table(6, seed=2, order=1, sharpness=3.0)
    params = [GREEDY, SamplingParams(temperature=1.0, seed=3, max_tokens=40), SamplingParams(seed=4, max_tokens=40)]
    prompts = [[0, 1], [2], [3, 4, 5]]

    def tokens(drafter: SuffixDrafter | None) -> tuple[list[tuple[int, ...]], int]:
        outputs = run(toy_engine(distribution, drafter, vocab_size=6), prompts, params)
        steps = sum(output.metrics.speculative_decoding.num_steps for output in outputs)
        return [output.outputs[0].token_ids for output in outputs], steps

    drafter = SuffixDrafter()
    (plain, many), (drafted, fewer), (again, fewest) = tokens(None), tokens(drafter), tokens(drafter)
    assert plain == drafted == again
    assert many > fewer > fewest, "the second time the first run's outputs are known"
