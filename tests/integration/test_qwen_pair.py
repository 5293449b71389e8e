"""Qwen2.5-Coder-1.5B with the 0.5B model as its draft: the same bits as without drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.models.loader.packaged import PACKAGED_MODELS, packaged_path

pytestmark = pytest.mark.model

PROMPTS = [
    "def fibonacci(n):\n    ",
    "The capital of France is",
    "x = 1\ny = 1\nx = 1\ny =",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=42, max_tokens=16, ignore_eos=True)
SPECULATION: dict[str, dict[str, Any]] = {
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 4, "adaptive": False},
    "small draft": {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "adaptive": False,
        "quantization": "int4",
        "draft_vocab_size": 32768,
    },
    "auto": {"method": "auto"},
}


@pytest.fixture(scope="module")
def models() -> tuple[Path, Path]:
    """Target and draft, if both are in the user's cache: they are too large to be fetched for tests."""
    found = []
    for alias in ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"):
        path = packaged_path(PACKAGED_MODELS[alias])
        if not path.exists():
            pytest.skip(f"{alias} is not in the cache; outrider pull {alias} puts it there")
        found.append(path)
    return found[0], found[1]


def answers(llm: LLM) -> tuple[list[tuple[int, ...]], list[Any]]:
    outputs = [output for params in (GREEDY, SEEDED) for output in llm.generate(PROMPTS, params)]
    return [output.outputs[0].token_ids for output in outputs], [output.metrics for output in outputs]


def test_the_pair_leaves_every_bit_as_it_is(models: tuple[Path, Path]) -> None:
    target, draft = models
    settings: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4}
    expected, _ = answers(LLM(str(target), speculative_config=None, **settings))
    for name, keys in SPECULATION.items():
        llm = LLM(str(target), speculative_config={**keys, "model": str(draft)}, **settings)
        told, metrics = answers(llm)
        assert told == expected, name
        assert all(each.speculation.active for each in metrics)
        if name != "auto":  # which drafts where it pays; these draft in any case
            assert all(each.speculative_decoding.num_accepted_draft_tokens > 0 for each in metrics), name
