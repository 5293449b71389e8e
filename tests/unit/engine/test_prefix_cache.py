"""The prefix cache under speculation: only committed text is found, and what is found changes no answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.engine.engine import Engine
from outrider.runner.model_runner import Chunk, ForwardOutput, ModelRunner
from outrider.sampling_params import SamplingParams
from tests.toy import ToyModel, random_table
from tests.unit.engine.helpers import drain, greedy_continuation, oracle, run, toy_engine

VOCAB = 6
DISTRIBUTION = random_table(VOCAB, seed=4, sharpness=3.0)
BLOCK = 2


def engine_with(drafter: Drafter | None, k: int = 4) -> Engine:
    return toy_engine(DISTRIBUTION, drafter, vocab_size=VOCAB, k=k, block_size=BLOCK, num_blocks=128)


def draft_model(distribution_seed: int) -> DraftModelDrafter:
    runner = ModelRunner(
        ToyModel(VOCAB, random_table(VOCAB, seed=distribution_seed, sharpness=3.0)), num_blocks=128, block_size=2
    )
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64)


def test_rejected_text_is_never_found_and_committed_text_is() -> None:
    prompt, params = [1, 2, 3, 4], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    said = greedy_continuation(DISTRIBUTION, prompt, 2)
    drafted: list[list[int]] = []

    def wrong(request: object, max_tokens: int) -> list[int]:
        drafted.append(
            [(token + 1) % VOCAB for token in greedy_continuation(DISTRIBUTION, [*prompt, said[0]], max_tokens)]
        )
        return drafted[-1]

    drafter = oracle(DISTRIBUTION, vocab_size=VOCAB)
    drafter._choose = wrong
    engine = engine_with(drafter)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    (first,) = run(engine, [prompt], params)
    text = list(first.outputs[0].token_ids)
    assert drafted, "nothing was drafted, so nothing was rejected"
    rejected = [*prompt, text[0], *drafted[0], 0]
    engine.add_request("rejected", rejected, params)
    drain(engine)
    shared = engine.take_output("rejected").metrics.num_cached_tokens
    assert shared == 4, f"{shared} tokens found, though only the prompt was ever committed"
    engine.add_request("committed", [*prompt, *text, 0], params)
    drain(engine)
    again = engine.take_output("committed")
    assert again.metrics.num_cached_tokens == (len(prompt) + len(text) - 1) // BLOCK * BLOCK
    (cold,) = run(engine_with(None), [[*prompt, *text, 0]], params)
    assert again.outputs[0].token_ids == cold.outputs[0].token_ids


@pytest.mark.parametrize("seed", [None, 3])
def test_turns_of_a_conversation_hit_alike_with_and_without_speculation(seed: int | None) -> None:
    params = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=9, ignore_eos=True)
    hits, answers = {}, {}
    for name, drafter in {
        "off": None,
        "oracle": oracle(DISTRIBUTION, vocab_size=VOCAB),
        "half right": oracle(DISTRIBUTION, right=lambda request: request.num_tokens % 3, vocab_size=VOCAB),
        "draft model": draft_model(4),
        "another draft model": draft_model(5),
    }.items():
        engine = engine_with(drafter)
        conversation, found, said = [1, 2, 3, 4, 5], [], []
        for turn in range(4):
            engine.add_request(str(turn), conversation, params)
            drain(engine)
            output = engine.take_output(str(turn))
            found.append(output.metrics.num_cached_tokens)
            said.append(output.outputs[0].token_ids)
            conversation = [*conversation, *output.outputs[0].token_ids, 1 + turn, 2]
        hits[name], answers[name] = found, said
    assert all(each == answers["off"] for each in answers.values())
    assert all(each == hits["off"] for each in hits.values()), hits
    assert hits["off"][0] == 0
    assert all(later > 0 for later in hits["off"][1:])


def test_the_draft_model_shares_too_and_goes_on_with_full_acceptance() -> None:
    drafter = draft_model(4)
    engine = engine_with(drafter)
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    fed: list[int] = []
    forward = drafter._passes._runner.forward

    def counted(chunks: Sequence[Chunk], capture: Sequence[int] = ()) -> ForwardOutput:
        fed.append(sum(len(chunk.token_ids) for chunk in chunks))
        return forward(chunks, capture)

    drafter._passes._runner.forward = counted  # type: ignore[method-assign]
    prompt = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1]
    for name in ("cold", "warm"):
        fed.clear()
        engine.add_request(name, prompt, params)
        drain(engine)
        stats = engine.take_output(name).metrics.speculative_decoding
        assert stats.draft_acceptance_rate == 1.0
        if name == "cold":
            assert fed[0] == len(prompt) + 1
        else:
            assert fed[0] <= BLOCK + 1, f"the draft computed {fed[0]} tokens again"
    drafter.check_integrity()
    assert drafter._passes._runner.kv.num_free_blocks == drafter._passes._runner.kv.num_blocks
