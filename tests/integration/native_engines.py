"""Engines over SmolLM2 on the native kernels, with each drafter, and a run that checks every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.engine import Engine
from outrider.models.loader.load import OpenModel
from outrider.models.native import NativeDecoder
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import GrammarCompiler
from outrider.sampling_params import SamplingParams
from outrider.speculation.policy import Policy
from tests.unit.engine.helpers import Composite, engine_of

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "A",
    "Water boils at 100 degrees. " * 12,
    "Dear Sir or Madam,\n\n",
]


def engine_over(
    target: NativeDecoder,
    opened: OpenModel,
    drafter: Drafter | Composite | None,
    k: int | Policy = 4,
    num_blocks: int = 256,
    block_size: int = 16,
    **settings: Any,
) -> Engine:
    return engine_of(
        ModelRunner(target, num_blocks=num_blocks, block_size=block_size),
        drafter,
        k,
        new_stream=opened.tokenizer.stream,
        max_model_len=1024,
        grammars=GrammarCompiler(opened.tokenizer.backend.to_str, opened.config.vocab_size, [2]),
        **settings,
    )


def draft_model_of(draft: NativeDecoder, opened: OpenModel, tree_width: int = 1) -> DraftModelDrafter:
    runner = ModelRunner(draft, num_blocks=256, block_size=16)
    return DraftModelDrafter(
        runner,
        target_vocab_size=opened.config.vocab_size,
        max_num_batched_tokens=512,
        tree_width=tree_width,
    )


DRAFTERS: dict[str, Callable[[NativeDecoder, OpenModel], Drafter | Composite | None]] = {
    "off": lambda draft, opened: None,
    "ngram": lambda draft, opened: NGramDrafter(min_match=1, max_match=4),
    "suffix": lambda draft, opened: SuffixDrafter(),
    "draft_model": draft_model_of,
    "tree of width 3": lambda draft, opened: draft_model_of(draft, opened, 3),
    "composite": lambda draft, opened: Composite([SuffixDrafter()], draft_model_of(draft, opened)),
}


def run(engine: Engine, opened: OpenModel, prompts: Sequence[str], params: SamplingParams) -> list[Request]:
    requests: list[Request] = [
        engine.add_request(str(i), opened.tokenizer.encode(p), params) for i, p in enumerate(prompts)
    ]
    while engine.has_requests:
        engine.step()
        engine.check_integrity()
    for request in requests:
        assert request.error is None
        engine.take_output(request.request_id)
    assert engine.runner.kv.num_free_blocks == engine.runner.kv.num_blocks
    return requests
