"""SmolLM2 and Gemma 3, each drafting for the other: the same bits as without drafts; real tokenizers, said anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.models.loader.load import open_model
from outrider.models.retokenizer import Retokenizer
from outrider.models.vocabulary import Vocabulary, shared_tokens
from outrider.outputs import RequestOutput

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "日本の首都は",
    "Family: 👩‍👩‍👧 e\u0301  two  spaces\n\n",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=42, max_tokens=16, ignore_eos=True)
ROUNDS = 50
TEXT = (
    "  Leading spaces, then   runs\n\n\n    of them.\t\tTabs. 我喜歡吃蘋果，東京は日本の首都です。"
    " e\u0301 cafe\u0301 👩‍👩‍👧👍🏽"
    " don't we'll 12345 <eos> <|im_end|> <bos> <|endoftext|>!!! (a+b)*c == d; return None  # end\n" * 3
)


def answers(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def vocabularies(smollm2_path: Path, gemma_path: Path) -> list[Vocabulary]:
    opened = [open_model(str(path)) for path in (smollm2_path, gemma_path)]
    return [Vocabulary(one.tokenizer, one.config.vocab_size) for one in opened]


@pytest.mark.parametrize("reverse", [False, True], ids=["gemma for smollm2", "smollm2 for gemma"])
def test_drafts_of_another_vocabulary_leave_every_bit_as_it_is(
    smollm2_path: Path, gemma_path: Path, reverse: bool
) -> None:
    target, draft = (gemma_path, smollm2_path) if reverse else (smollm2_path, gemma_path)
    settings: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8}
    plain = LLM(str(target), **settings)
    expected = [answers(plain.generate(PROMPTS, params)) for params in (GREEDY, SEEDED)]
    for algorithm in ("tli", "slem"):
        speculative: dict[str, Any] = {"method": "cross_vocab", "model": str(draft), "cross_vocab_algorithm": algorithm}
        speculative |= {"num_speculative_tokens": 4, "adaptive": False}  # it drafts, whatever that costs here
        llm = LLM(str(target), speculative_config=speculative, **settings)
        runs = [llm.generate(PROMPTS, params) for params in (GREEDY, SEEDED)]
        assert [answers(outputs) for outputs in runs] == expected
        for outputs in runs:
            assert sum(output.metrics.speculative_decoding.num_accepted_draft_tokens for output in outputs) > 0
            assert all(str(output.metrics.speculation).startswith("cross_vocab") for output in outputs)


@pytest.mark.parametrize("reverse", [False, True], ids=["smollm2 in gemma's", "gemma in smollm2's"])
def test_fifty_rounds_of_text_said_anew(vocabularies: list[Vocabulary], reverse: bool) -> None:
    source, own = vocabularies[:: -1 if reverse else 1]
    images = shared_tokens(own, source).images
    token_ids = [*source.start_ids, *source.encode(TEXT)]
    text = Retokenizer(source, own, images)
    for turn in range(1, ROUNDS + 1):
        read = len(token_ids) * turn // ROUNDS
        text.update(token_ids[:read])
        whole = Retokenizer(source, own, images)
        whole.update(token_ids[:read])
        assert text.tokens() == whole.tokens()
    assert text.tokens() == ([*own.start_ids, *own.encode(TEXT)], [])
