"""SmolLM2 on the native kernels: the very same bits with speculation on or off, alone or in a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import native
from outrider.models.loader.load import OpenModel
from outrider.models.native import NativeDecoder
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.sampling_params import SamplingParams
from outrider.torch_backend.decoder import Decoder, load_decoder
from tests.integration.native_engines import DRAFTERS, PROMPTS, draft_model_of, engine_over, run
from tests.loading import load_model, logits_of
from tests.unit.engine.helpers import KSchedule

pytestmark = [pytest.mark.model, pytest.mark.skipif(not native.available(), reason=native.describe())]

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=42, max_tokens=24, ignore_eos=True)


EVERY_PARAMETER = ("off", "ngram", "draft_model", "tree of width 3")
"""Drafters that meet each parameter here; all of them do over a toy target, tests/unit/engine/test_parameters.py."""


@pytest.fixture(scope="module")
def alone(target: NativeDecoder, opened: OpenModel) -> dict[int | None, list[list[int]]]:
    """Each prompt by itself with speculation off, greedy and seeded."""
    engine = engine_over(target, opened, None)
    return {
        params.seed: [run(engine, opened, [prompt], params)[0].output_token_ids for prompt in PROMPTS]
        for params in (GREEDY, SEEDED)
    }


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_batch_of_eight_equals_eight_solo_runs(
    name: str,
    params: SamplingParams,
    target: NativeDecoder,
    draft: NativeDecoder,
    opened: OpenModel,
    alone: dict[int | None, list[list[int]]],
) -> None:
    requests = run(engine_over(target, opened, DRAFTERS[name](draft, opened)), opened, PROMPTS, params)
    assert [request.output_token_ids for request in requests] == alone[params.seed]
    if name != "off":
        drafted = sum(r.metrics.speculative_decoding.num_draft_tokens for r in requests)
        accepted = sum(r.metrics.speculative_decoding.num_accepted_draft_tokens for r in requests)
        assert 0 < accepted < drafted, "both acceptance and rejection must have been at work"


@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 7}, {"num_blocks": 22}, {"max_num_seqs": 2}])
def test_chunking_preemption_and_batch_size_change_no_bit(
    settings: dict[str, int],
    target: NativeDecoder,
    draft: NativeDecoder,
    opened: OpenModel,
    alone: dict[int | None, list[list[int]]],
) -> None:
    for width in (1, 2):
        engine = engine_over(target, opened, draft_model_of(draft, opened, width), **settings)
        requests = run(engine, opened, PROMPTS, SEEDED)
        assert [request.output_token_ids for request in requests] == alone[SEEDED.seed]
        if "num_blocks" in settings:
            assert sum(request.num_preemptions for request in requests) > 0


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_k_changes_no_bit(
    k: int, target: NativeDecoder, draft: NativeDecoder, opened: OpenModel, alone: dict[int | None, list[list[int]]]
) -> None:
    engine = engine_over(target, opened, draft_model_of(draft, opened), k)
    requests = run(engine, opened, PROMPTS[:2], GREEDY)
    assert [request.output_token_ids for request in requests] == alone[None][:2]


SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "tags": {"type": "array"}}, "required": ["id"]}
PARAMETERS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 12},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.7},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "presence_penalty": {"presence_penalty": 0.9},
    "logit_bias": {"logit_bias": {28: 4.0, 260: -5.0, 30: 3.0}},
    "allowed_token_ids": {"allowed_token_ids": tuple(range(20, 4000))},
    "bad_token_ids": {"bad_token_ids": (28, 30, (260, 1789))},
    "min_tokens": {"min_tokens": 14, "ignore_eos": False, "stop_token_ids": (28, 30, 198)},
    "json schema": {"ignore_eos": False, "structured_outputs": {"json": SCHEMA}},
    "regex": {"ignore_eos": False, "structured_outputs": {"regex": r"[0-9]+(, [0-9]+)*\."}},
    "choice": {"ignore_eos": False, "structured_outputs": {"choice": ["14, 15", "14, 16", "jumps over"]}},
    "grammar": {"ignore_eos": False, "structured_outputs": {"grammar": 'start: (" " /[a-z0-9]+/)+ "."'}},
    "grammar after a marker": {"ignore_eos": False, "structured_outputs": {"regex": "[a-z ]+", "after": ","}},
    "logits_processors": {"logits_processors": (lambda token_ids, row: row * (1.0 + 0.01 * (len(token_ids) % 7)),)},
}


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 42}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("parameter", PARAMETERS)
def test_each_parameter_alone_gives_the_plain_answer_and_logprobs_with_every_drafter(
    parameter: str, how: dict[str, Any], target: NativeDecoder, draft: NativeDecoder, opened: OpenModel
) -> None:
    settings = {
        "max_tokens": 12,
        "ignore_eos": True,
        "logprobs": 2,
        "prompt_logprobs": 1,
        **how,
        **PARAMETERS[parameter],
    }
    params, prompts = SamplingParams(**{**settings, "max_tokens": max(12, settings.get("min_tokens", 0))}), PROMPTS[3:5]
    plain, *others = (
        run(engine_over(target, opened, make(draft, opened), end_token_ids=frozenset({2})), opened, prompts, params)
        for make in (DRAFTERS[name] for name in EVERY_PARAMETER)
    )
    for requests in others:
        for request, expected in zip(requests, plain, strict=True):
            assert request.output_token_ids == expected.output_token_ids
            assert request.logprobs == expected.logprobs, "not the same bits"
            assert request.prompt_logprobs == expected.prompt_logprobs
        assert sum(request.metrics.speculative_decoding.num_draft_tokens for request in requests) > 0
    for request in plain:
        assert len(request.logprobs) == request.num_output_tokens
        assert len(request.prompt_logprobs) == len(request.prompt_token_ids)
        if params.greedy and parameter in ("top_k", "top_p", "min_p", "typical_p"):
            assert all(entry.rank == 1 for entry in request.logprobs), "the greedy token is the most probable one"


def test_several_tokens_on_a_filled_cache_are_the_bits_of_single_steps(
    variant: str, target: NativeDecoder, opened: OpenModel
) -> None:
    ids = [*opened.tokenizer.encode(PROMPTS[2]), *range(300, 317)]
    start = len(ids) - 17
    runner = ModelRunner(target, num_blocks=8, block_size=16)
    assert runner.kv.allocate("x", len(ids))
    runner.forward([Chunk("x", ids[:start], 0, num_logits=1)])
    singly = [
        runner.forward([Chunk("x", ids[i : i + 1], i, num_logits=1)]).logits[0].row(0) for i in range(start, len(ids))
    ]
    for count in (2, 3, 5, 8, 17):
        (together,) = runner.forward([Chunk("x", ids[start : start + count], start, num_logits=count)]).logits
        assert np.array_equal(together.rows(slice(None)), np.array(singly[:count])), f"{count} rows"


def test_logits_are_those_of_the_reference_up_to_eight_bit_activations(
    variant: str, target: NativeDecoder, opened: OpenModel
) -> None:
    decoder = load_decoder(opened)
    errors, agreements = [], []
    for prompt in PROMPTS:  # one prompt's error is chance: 0.023 to 0.047 of the spread
        ids = opened.tokenizer.encode(prompt)
        exact, packed = (logits_of(model, ids) for model in (decoder, target))
        errors.append(float(np.abs(packed - exact).mean() / exact.std()))
        agreements.append(float((packed.argmax(-1) == exact.argmax(-1)).mean()))
    assert np.mean(errors) < 0.04, f"mean errors {errors} of the logits' spread"
    assert np.mean(agreements) >= 0.9


def test_float32_weights_give_the_references_logits(variant: str, opened: OpenModel, smollm2_path: Path) -> None:
    ids = opened.tokenizer.encode(PROMPTS[1])
    few = replace(opened.config, num_layers=4)
    decoder = Decoder(few, load_model(str(smollm2_path)).weights, torch.device("cpu"))
    wide = NativeDecoder(few, opened.packed_weights("f32"), kv_dtype="float32")
    assert np.abs(logits_of(decoder, ids) - logits_of(wide, ids)).max() < 2e-3


@pytest.mark.parametrize("seed", [None, 11])
def test_a_draft_equal_to_the_target_is_accepted_throughout(
    seed: int | None, target: NativeDecoder, opened: OpenModel
) -> None:
    controller = KSchedule(lambda request: (4, 0, 4, 4, 0)[request.num_output_tokens // 10 % 5])
    engine = engine_over(target, opened, draft_model_of(target, opened), controller)
    params = SamplingParams(temperature=0.0 if seed is None else 0.8, seed=seed, max_tokens=300, ignore_eos=True)
    (request,) = run(engine, opened, ["The history of the lighthouse begins"], params)
    stats = request.metrics.speculative_decoding
    assert len(request.output_token_ids) == 300
    assert {0, 4} <= set(stats.per_step_drafted)
    assert stats.num_accepted_draft_tokens == stats.num_draft_tokens


def test_weights_take_hardly_more_memory_than_the_file(target: NativeDecoder, smollm2_path: Path) -> None:
    assert target.weight_bytes <= 1.15 * smollm2_path.stat().st_size


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("name", ["off", "draft_model", "tree of width 3"])
def test_a_prefix_found_in_the_cache_changes_no_bit(
    name: str,
    params: SamplingParams,
    target: NativeDecoder,
    draft: NativeDecoder,
    opened: OpenModel,
    alone: dict[int | None, list[list[int]]],
) -> None:
    engine = engine_over(target, opened, DRAFTERS[name](draft, opened), block_size=4, num_blocks=512)
    with_logprobs = params.model_copy(update={"logprobs": 2})
    cold = run(engine, opened, PROMPTS[:3], with_logprobs)
    warm = run(engine, opened, PROMPTS[:3], with_logprobs)
    assert all(request.metrics.num_cached_tokens == 0 for request in cold)
    assert all(request.metrics.num_cached_tokens == (len(request.prompt_token_ids) - 1) // 4 * 4 for request in warm)
    assert any(request.metrics.num_cached_tokens > 0 for request in warm)
    for first, second, tokens in zip(cold, warm, alone[params.seed], strict=False):
        assert first.output_token_ids == second.output_token_ids == tokens
        assert first.logprobs == second.logprobs
