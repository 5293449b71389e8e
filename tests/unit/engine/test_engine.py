"""The decode loop over toy targets: what is emitted never depends on the drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.drafters.base import DraftRequest, Proposal
from outrider.errors import InvalidRequestError
from outrider.outputs import RequestOutput, SpeculationStatus
from outrider.request import Request
from outrider.sampling_params import SamplingParams
from outrider.speculation.policy import PAUSED
from tests.toy import random_table, scripted
from tests.unit.engine.helpers import (
    GREEDY,
    Composite,
    KSchedule,
    ScriptedDrafter,
    drain,
    greedy_continuation,
    oracle,
    run,
    toy_engine,
)

VOCAB = 11
DISTRIBUTION = random_table(VOCAB, seed=1, sharpness=3.0)
PROMPTS: list[list[int]] = [[1], [2, 3], [4, 5, 6], [7] * 9, [8, 1] * 4, [0], [3, 3, 3], list(range(11))]


def always_wrong() -> ScriptedDrafter:
    return oracle(DISTRIBUTION, right=lambda request: 0, vocab_size=VOCAB)


def right_up_to(count: int) -> ScriptedDrafter:
    return oracle(DISTRIBUTION, right=lambda request: count, vocab_size=VOCAB)


def changing_lengths() -> ScriptedDrafter:
    def choose(request: Request, k: int) -> list[int]:
        tokens = greedy_continuation(DISTRIBUTION, request.token_ids, k)
        right = request.num_tokens % 3
        return [t if i < right else (t + 1) % VOCAB for i, t in enumerate(tokens)][: request.num_tokens % (k + 1)]

    return ScriptedDrafter(choose)


DRAFTERS: dict[str, Callable[[], ScriptedDrafter]] = {
    "oracle": lambda: oracle(DISTRIBUTION, vocab_size=VOCAB),
    "always wrong": always_wrong,
    "right up to 1": lambda: right_up_to(1),
    "right up to 3": lambda: right_up_to(3),
    "lengths 0..K": changing_lengths,
    "nothing": lambda: ScriptedDrafter(lambda request, k: []),
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("k", [1, 4, 7])
def test_greedy_batch_equals_the_target_alone(name: str, k: int) -> None:
    outputs = run(toy_engine(DISTRIBUTION, DRAFTERS[name](), vocab_size=VOCAB, k=k), PROMPTS)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == greedy_continuation(DISTRIBUTION, prompt, 24)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=5, max_tokens=24),
        SamplingParams(seed=-1, temperature=0.7, top_k=5, max_tokens=24),
        SamplingParams(seed=2**63, top_p=0.8, max_tokens=24),
    ],
)
def test_seeded_output_does_not_depend_on_point_mass_drafts(name: str, params: SamplingParams) -> None:
    plain = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), PROMPTS, params)
    drafted = run(toy_engine(DISTRIBUTION, DRAFTERS[name](), vocab_size=VOCAB), PROMPTS, params)
    assert tokens(drafted) == tokens(plain)


def test_seeded_request_has_one_answer_alone_in_a_batch_and_after_an_abort() -> None:
    params = SamplingParams(seed=7, max_tokens=30)
    alone = tokens(run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), [[1, 2]], params))[0]
    others = [SamplingParams(max_tokens=30), GREEDY, SamplingParams(seed=8, max_tokens=30)]
    engine = toy_engine(DISTRIBUTION, right_up_to(2), vocab_size=VOCAB)
    assert tokens(run(engine, [[3], [1, 2], [4], [5, 6]], [others[0], params, *others[1:]]))[1] == alone
    engine.add_request("neighbour", [9], SamplingParams(max_tokens=100))
    engine.add_request("same", [1, 2], params)
    for _ in range(3):
        engine.step()
    assert engine.abort("neighbour")
    drain(engine)
    assert engine.take_output("same").outputs[0].token_ids == alone


def test_sources_say_how_each_token_was_made() -> None:
    output = run(
        toy_engine(DISTRIBUTION, right_up_to(2), vocab_size=VOCAB, k=3),
        [[1]],
        SamplingParams(temperature=0, max_tokens=7),
    )
    assert output[0].outputs[0].sources[:4] == ("target", "accepted", "accepted", "recovered")
    output = run(toy_engine(DISTRIBUTION, oracle(DISTRIBUTION, vocab_size=VOCAB), vocab_size=VOCAB, k=3), [[1]], GREEDY)
    assert output[0].outputs[0].sources[:6] == ("target", "accepted", "accepted", "accepted", "bonus", "accepted")
    output = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), [[1]], GREEDY)
    assert set(output[0].outputs[0].sources) == {"target"}


def test_oracle_drafts_are_all_accepted_and_save_passes() -> None:
    engine = toy_engine(DISTRIBUTION, oracle(DISTRIBUTION, vocab_size=VOCAB), vocab_size=VOCAB, k=3)
    (output,) = run(engine, [[1]], SamplingParams(temperature=0, max_tokens=41))
    stats = output.metrics.speculative_decoding
    assert stats.draft_acceptance_rate == 1.0
    assert stats.mean_acceptance_length == 4.0
    assert engine.runner.model.num_passes == 11  # type: ignore[attr-defined]


def test_k_zero_runs_no_drafter_and_one_pass_per_token() -> None:
    def never(request: Request, max_tokens: int) -> Sequence[int]:
        raise AssertionError("asked to draft")

    engine = toy_engine(DISTRIBUTION, ScriptedDrafter(never), vocab_size=VOCAB, k=0)
    (output,) = run(engine, [[1]], GREEDY)
    assert engine.runner.model.num_passes == 24  # type: ignore[attr-defined]
    assert output.metrics.speculative_decoding.num_draft_tokens == 0


def test_a_request_may_turn_speculation_off_for_itself() -> None:
    engine = toy_engine(DISTRIBUTION, oracle(DISTRIBUTION, vocab_size=VOCAB), vocab_size=VOCAB)
    off = SamplingParams(temperature=0, max_tokens=12, num_speculative_tokens=0)
    with_drafts, without = run(engine, [[1], [1]], [SamplingParams(temperature=0, max_tokens=12), off])
    assert with_drafts.outputs[0].token_ids == without.outputs[0].token_ids
    assert without.metrics.speculative_decoding.num_draft_tokens == 0
    assert not without.metrics.speculation.active
    assert with_drafts.metrics.speculative_decoding.num_draft_tokens > 0


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
def test_chunked_prompts_change_nothing(chunk: int) -> None:
    engine = toy_engine(DISTRIBUTION, right_up_to(2), vocab_size=VOCAB, max_num_batched_tokens=chunk)
    assert tokens(run(engine, PROMPTS)) == [tuple(greedy_continuation(DISTRIBUTION, p, 24)) for p in PROMPTS]


@pytest.mark.parametrize("num_blocks", range(20, 60, 3))
def test_preemption_changes_nothing(num_blocks: int) -> None:
    params = [SamplingParams(seed=i, max_tokens=24) if i % 2 else GREEDY for i in range(len(PROMPTS))]
    plenty = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), PROMPTS, params)
    engine = toy_engine(DISTRIBUTION, right_up_to(2), vocab_size=VOCAB, num_blocks=num_blocks, block_size=2)
    scarce = run(engine, PROMPTS, params)
    assert tokens(scarce) == tokens(plenty)


def test_scarce_blocks_really_preempt() -> None:
    engine = toy_engine(DISTRIBUTION, right_up_to(2), vocab_size=VOCAB, num_blocks=20, block_size=2)
    requests = [engine.add_request(str(i), prompt, GREEDY) for i, prompt in enumerate(PROMPTS)]
    drain(engine)
    assert sum(request.num_preemptions for request in requests) > 0
    assert requests[0].num_preemptions == 0, "the oldest request must never wait for a younger one"


@pytest.mark.parametrize("place", range(1, 12))
@pytest.mark.parametrize("k", [0, 1, 4, 8])
def test_an_end_at_any_place_in_an_accepted_block(place: int, k: int) -> None:
    script = [1] * (place - 1) + [9] + [2] * 20
    distribution = scripted(VOCAB, script, prompt_len=2)
    plain = [1] * (place - 1) + [9]
    engine = toy_engine(
        distribution, oracle(distribution, vocab_size=VOCAB), vocab_size=VOCAB, k=k, end_token_ids=frozenset({9})
    )
    (output,) = run(engine, [[0, 0]], SamplingParams(temperature=0, max_tokens=16))
    assert list(output.outputs[0].token_ids) == plain
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].text == "b" * (place - 1), "the end token is no part of the text"
    stats = output.metrics.speculative_decoding
    assert stats.num_accepted_draft_tokens <= place
    (output,) = run(engine, [[0, 0]], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 16
    (output,) = run(
        engine, [[0, 0]], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, stop_token_ids=(9,))
    )
    assert list(output.outputs[0].token_ids) == plain
    assert output.outputs[0].stop_reason == 9
    (output,) = run(engine, [[0, 0]], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, stop=("j",)))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("b" * (place - 1), "j")
    assert list(output.outputs[0].token_ids) == plain
    (output,) = run(engine, [[0, 0]], SamplingParams(temperature=0, max_tokens=place, ignore_eos=True))
    assert (list(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (plain, "length")


@pytest.mark.parametrize("prompt_len", range(20, 32))
@pytest.mark.parametrize("k", [0, 4, 9])
def test_the_context_ends_where_it_should(prompt_len: int, k: int) -> None:
    engine = toy_engine(
        DISTRIBUTION, oracle(DISTRIBUTION, vocab_size=VOCAB), vocab_size=VOCAB, k=k, max_model_len=32, num_blocks=8
    )
    prompt = [i % VOCAB for i in range(prompt_len)]
    (output,) = run(engine, [prompt], SamplingParams(temperature=0, max_tokens=100))
    assert list(output.outputs[0].token_ids) == greedy_continuation(DISTRIBUTION, prompt, 32 - prompt_len)
    assert output.outputs[0].finish_reason == "length"


def test_k_that_changes_every_step_changes_nothing() -> None:
    engine = toy_engine(
        DISTRIBUTION,
        right_up_to(3),
        vocab_size=VOCAB,
        k=KSchedule(lambda r: (r.num_tokens * 7 + len(r.request_id)) % 6),
    )
    assert tokens(run(engine, PROMPTS)) == [tuple(greedy_continuation(DISTRIBUTION, p, 24)) for p in PROMPTS]


class BrokenDrafter(ScriptedDrafter):
    """Fails for prompts that begin with 7, in the way that it is told."""

    name = "broken"

    def __init__(self, fault: Callable[[int], Proposal]) -> None:
        super().__init__(lambda request, k: [])
        self._fault = fault

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        return [
            self._fault(e.max_tokens)
            if e.request.prompt_token_ids[0] == 7
            else Proposal(tuple(greedy_continuation(DISTRIBUTION, e.request.token_ids, e.max_tokens)))
            for e in batch
        ]


def _raises(k: int) -> Proposal:
    raise RuntimeError("no luck today")


def _probs(total: float) -> NDArray[np.float64]:
    return np.full(VOCAB, total / VOCAB)


FAULTS: dict[str, tuple[Callable[[int], Proposal], str]] = {
    "raises": (_raises, "no luck today"),
    "id beyond the vocabulary": (lambda k: Proposal((VOCAB,)), str(VOCAB)),
    "negative id": (lambda k: Proposal((-1,)), "-1"),
    "too many": (lambda k: Proposal((1,) * (k + 1)), "5"),
    "distribution that does not sum to one": (lambda k: Proposal((1,), (_probs(1.5),)), "not 1"),
    "distribution missing": (lambda k: Proposal((1, 2), (_probs(1.0),)), "1 rows"),
    "distribution of NaN": (lambda k: Proposal((1,), (_probs(float("nan")),)), "nan"),
}


def test_a_step_in_which_look_ups_are_paused_says_why() -> None:
    class Pausing(KSchedule):
        def budget(self, request: Request, steps_without_drafts: int) -> int:
            return 0 if steps_without_drafts == 2 else 4

    drafter, policy = ScriptedDrafter(lambda request, most: []), Pausing(lambda request: 4)
    (output,) = run(toy_engine(DISTRIBUTION, Composite([drafter]), vocab_size=VOCAB, k=policy), [[1]], GREEDY)
    reasons = output.metrics.speculative_decoding.per_step_why
    assert reasons[:3] == [""] * 3, "the first step reads the prompt, in the next two nothing is found"
    assert set(reasons[3:]) == {PAUSED}
    (plain,) = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB, k=policy), [[1]], GREEDY)
    assert not any(plain.metrics.speculative_decoding.per_step_why), "without a drafter nothing is paused"


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_drafter_costs_one_request_its_drafts_and_says_so(name: str) -> None:
    fault, words = FAULTS[name]
    outputs = run(toy_engine(DISTRIBUTION, BrokenDrafter(fault), vocab_size=VOCAB), PROMPTS)
    assert tokens(outputs) == [tuple(greedy_continuation(DISTRIBUTION, p, 24)) for p in PROMPTS]
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        stats = output.metrics.speculative_decoding
        if prompt[0] == 7:
            assert str(output.metrics.speculation).startswith("inactive: drafter 'broken'")
            assert words in str(output.metrics.speculation)
            assert stats.num_draft_tokens == 0
        else:
            assert stats.draft_acceptance_rate == 1.0
            assert output.metrics.speculation == SpeculationStatus("broken")


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1, max_tokens=24)])
def test_a_nan_in_the_target_ends_only_that_request(params: SamplingParams) -> None:
    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.full(VOCAB, np.nan) if context[0] == 7 and len(context) > 12 else DISTRIBUTION(context)

    outputs = run(toy_engine(distribution, None, vocab_size=VOCAB), PROMPTS, params)
    healthy = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), PROMPTS, params)
    for prompt, output, other in zip(PROMPTS, outputs, healthy, strict=True):
        if prompt[0] == 7:
            assert output.outputs[0].finish_reason == "error"
            assert "not finite" in str(output.error)
            assert output.outputs[0].token_ids == other.outputs[0].token_ids[:4]
        else:
            assert output.outputs[0].token_ids == other.outputs[0].token_ids


def test_a_forward_pass_that_raises_ends_its_requests_and_frees_everything() -> None:
    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        if len(context) == 6:
            raise MemoryError("no room")
        return DISTRIBUTION(context)

    engine = toy_engine(distribution, None, vocab_size=VOCAB)
    outputs = run(engine, [[1], [2]])
    assert [o.outputs[0].finish_reason for o in outputs] == ["error", "error"]
    assert all("no room" in str(o.error) for o in outputs)
    assert len(run(engine, [[1, 2, 3, 4, 5, 6, 7]])[0].outputs[0].token_ids) == 24


def test_abort_waiting_running_and_unknown() -> None:
    engine = toy_engine(DISTRIBUTION, right_up_to(1), vocab_size=VOCAB, max_num_seqs=1)
    engine.add_request("running", [1, 2], GREEDY)
    engine.add_request("waiting", [3, 4], GREEDY)
    engine.step()
    assert engine.abort("waiting")
    assert engine.abort("running")
    assert not engine.abort("running")
    assert not engine.abort("unknown")
    assert not engine.has_requests
    engine.check_integrity()
    assert engine.runner.kv.num_free_blocks == engine.runner.kv.num_blocks
    assert engine.take_output("running").outputs[0].finish_reason == "abort"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([], "empty"), ([0] * 256, "256"), ([1, VOCAB], "0 to 10"), ([-1], "-1")],
)
def test_prompts_that_do_not_fit_are_refused_and_leave_nothing(prompt: list[int], words: str) -> None:
    engine = toy_engine(DISTRIBUTION, None, vocab_size=VOCAB)
    with pytest.raises(InvalidRequestError, match=words) as caught:
        engine.add_request("x", prompt, GREEDY)
    assert caught.value.param == "prompt"
    assert "\n" not in str(caught.value)
    assert not engine.has_requests


def test_a_request_id_in_use_is_refused() -> None:
    engine = toy_engine(DISTRIBUTION, None, vocab_size=VOCAB)
    engine.add_request("x", [1], GREEDY)
    with pytest.raises(InvalidRequestError, match="'x' is in use"):
        engine.add_request("x", [1], GREEDY)


def tokens(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]
