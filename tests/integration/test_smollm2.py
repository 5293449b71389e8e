"""SmolLM2 in float32 on the reference: greedy tokens are transformers' own, with speculation off and on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.engine.engine import Engine
from outrider.request import Request
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.sampling_params import SamplingParams
from outrider.speculation.policy import Policy
from outrider.torch_backend.decoder import Decoder
from tests.loading import LoadedModel, load_model, logits_of
from tests.unit.engine.helpers import engine_of

pytestmark = pytest.mark.model

NUM_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
CPU = torch.device("cpu")
FEW_LAYERS = 10


@dataclass
class Reference:
    """What transformers says: tokens, and by how much each beat the runner-up."""

    tokens: list[list[int]]
    margins: list[list[float]]
    logits: torch.Tensor
    """Of the first prompt, [its tokens, vocab]."""


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    return load_model(str(smollm2_path))


@pytest.fixture(scope="module")
def target(loaded: LoadedModel) -> Decoder:
    return Decoder(loaded.config, loaded.weights, CPU)


@pytest.fixture(scope="module")
def draft(loaded: LoadedModel) -> Decoder:
    """The target's first layers: a draft of the same vocabulary that is often wrong."""
    return Decoder(replace(loaded.config, num_layers=FEW_LAYERS), loaded.weights, CPU)


@pytest.fixture(scope="module")
def reference(smollm2_path: Path, loaded: LoadedModel) -> Reference:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )
    model.eval()
    model.generation_config.eos_token_id = None  # go on after an end token, as ignore_eos does
    tokens, margins = [], []
    for prompt in PROMPTS:
        ids = torch.tensor([loaded.tokenizer.encode(prompt)])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens.append(out.sequences[0, ids.shape[1] :].tolist())
        best = torch.stack(out.logits)[:, 0].topk(2).values
        margins.append((best[:, 0] - best[:, 1]).tolist())
    with torch.inference_mode():
        logits = model(torch.tensor([loaded.tokenizer.encode(PROMPTS[0])])).logits[0]
    return Reference(tokens, margins, logits)


def engine_over(
    target: Decoder, loaded: LoadedModel, drafter: Drafter | None, k: int | Policy = 4, **settings: Any
) -> Engine:
    runner = ModelRunner(target, num_blocks=256, block_size=16)
    return engine_of(
        runner,
        drafter,
        k,
        new_stream=loaded.tokenizer.stream,
        max_model_len=1024,
        **settings,
    )


def draft_model_of(draft: Decoder, loaded: LoadedModel) -> DraftModelDrafter:
    runner = ModelRunner(draft, num_blocks=256, block_size=16)
    return DraftModelDrafter(runner, target_vocab_size=loaded.config.vocab_size, max_num_batched_tokens=512)


def run(engine: Engine, loaded: LoadedModel, prompts: list[str], params: SamplingParams = GREEDY) -> list[Request]:
    requests: list[Request] = [
        engine.add_request(str(i), loaded.tokenizer.encode(p), params) for i, p in enumerate(prompts)
    ]
    while engine.has_requests:
        engine.step()
        engine.check_integrity()
    assert engine.runner.kv.num_free_blocks == engine.runner.kv.num_blocks
    return requests


DRAFTERS: dict[str, Callable[[Decoder, LoadedModel], Drafter | None]] = {
    "off": lambda draft, loaded: None,
    "ngram": lambda draft, loaded: NGramDrafter(min_match=1, max_match=4),
    "draft_model": draft_model_of,
}


def test_logits_equal_transformers(target: Decoder, loaded: LoadedModel, reference: Reference) -> None:
    ids = loaded.tokenizer.encode(PROMPTS[0])
    assert np.abs(logits_of(target, ids) - reference.logits.numpy()).max() < 2e-3


def test_several_tokens_on_a_filled_cache_equal_single_steps(target: Decoder, loaded: LoadedModel) -> None:
    ids = [*loaded.tokenizer.encode(PROMPTS[2]), 300, 301, 302, 303, 304]
    start = len(ids) - 5
    runner = ModelRunner(target, num_blocks=8, block_size=16)
    assert runner.kv.allocate("x", len(ids))
    runner.forward([Chunk("x", ids[:start], 0, num_logits=1)])
    (together,) = runner.forward([Chunk("x", ids[start:], start, num_logits=5)]).logits
    singly = [
        runner.forward([Chunk("x", ids[i : i + 1], i, num_logits=1)]).logits[0].row(0) for i in range(start, len(ids))
    ]
    assert np.abs(together.rows(slice(None)) - np.array(singly)).max() < 2e-3


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_tokens_equal_transformers(
    name: str, target: Decoder, draft: Decoder, loaded: LoadedModel, reference: Reference
) -> None:
    requests = run(engine_over(target, loaded, DRAFTERS[name](draft, loaded)), loaded, PROMPTS)
    for prompt, request, tokens, margins in zip(PROMPTS, requests, reference.tokens, reference.margins, strict=True):
        ours = request.output_token_ids
        differ = next((i for i in range(NUM_TOKENS) if ours[i] != tokens[i]), None)
        assert differ is None, (
            f"{prompt!r} differs at token {differ}, where transformers' best token leads by {margins[differ]:.2e}"
        )
        assert min(margins) > 1e-4, f"{prompt!r}: a lead of {min(margins):.1e} is too small for a fair test"
    if name != "off":
        drafted = sum(r.metrics.speculative_decoding.num_draft_tokens for r in requests)
        accepted = sum(r.metrics.speculative_decoding.num_accepted_draft_tokens for r in requests)
        assert 0 < accepted < drafted, "both acceptance and rejection must have been at work"
