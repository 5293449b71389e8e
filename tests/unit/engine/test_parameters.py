"""Every sampling parameter with every drafter: what is emitted is what the target alone emits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.drafters.base import Drafter
from outrider.drafters.composite import CompositeDrafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import InvalidRequestError
from outrider.models.toy import ToyModel, random_table
from outrider.ops import native
from outrider.outputs import RequestOutput
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.noise import Weights
from outrider.sampling_params import SamplingParams
from tests.unit.engine.helpers import ScriptedDrafter, greedy_continuation, run, toy_engine

VOCAB = 9
LAW = random_table(VOCAB, seed=1, order=3, sharpness=2.0)
OTHER = random_table(VOCAB, seed=2, order=2, sharpness=2.0)
PROMPTS = [[1, 2], [3] * 7, [0, 1, 2, 0, 1, 2, 0]]
ENDS = frozenset({8})


def blend(context: tuple[int, ...]) -> NDArray[np.float64]:
    return np.asarray(0.6 * LAW(context) + 0.4 * OTHER(context))


def draft_model(**settings: Any) -> Drafter:
    runner = ModelRunner(ToyModel(VOCAB, blend), num_blocks=64, block_size=4)
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64, **settings)


def trimmed(**settings: Any) -> Drafter:
    kept = [0, 2, 3, 5]

    def law(context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.asarray(blend(context)[kept] / blend(context)[kept].sum())

    runner = ModelRunner(ToyModel(len(kept), law), num_blocks=64, block_size=4)
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64, token_ids=kept, **settings)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NGramDrafter(min_match=1, max_match=3),
    "draft model": draft_model,
    "trimmed draft model": trimmed,
    "tree": lambda: draft_model(tree_width=2),
    "trimmed coupled tree": lambda: trimmed(tree_width=3, coupled="all"),
    "coupled draft model": lambda: draft_model(coupled="all"),
    **({"suffix": SuffixDrafter} if native.available() else {}),
    "composite": lambda: CompositeDrafter([NGramDrafter(min_match=1, max_match=3)], draft_model()),
    "forbidden tokens": lambda: ScriptedDrafter(lambda request, k: [8, 1, 8, 0][:k]),
    "the target's unedited choice": lambda: ScriptedDrafter(lambda r, k: greedy_continuation(LAW, r.token_ids, k)),
}


def push_apart(token_ids: tuple[int, ...], row: Weights) -> Weights:
    row[token_ids[-1]] -= 2.0
    row[(token_ids[-1] + len(token_ids)) % VOCAB] += 1.0
    return row


PARAMETERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "typical_p": {"typical_p": 0.6},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "frequency_penalty": {"frequency_penalty": 1.1},
    "presence_penalty": {"presence_penalty": 1.5},
    "logit_bias": {"logit_bias": {0: -3.0, 4: 2.0}},
    "allowed_token_ids": {"allowed_token_ids": (1, 4, 6, 7)},
    "bad_token_ids": {"bad_token_ids": (0, (1, 2), (3, 3))},
    "min_tokens": {"min_tokens": 9},
    "logits_processors": {"logits_processors": (push_apart,)},
    "stop_token_ids": {"stop_token_ids": (5,)},
    "stop": {"stop": ("cd", "gg"), "min_tokens": 4},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 2},
    "all": {"top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2, "logit_bias": {2: 1.0}, "min_tokens": 5},
}


def summary(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (
            out.error,
            out.outputs[0].token_ids,
            out.outputs[0].text,
            out.outputs[0].finish_reason,
            out.outputs[0].stop_reason,
        )
        for out in outputs
    ]


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("parameter", PARAMETERS)
def test_every_drafter_gives_the_plain_answer(parameter: str, how: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=20, **how, **PARAMETERS[parameter])
    plain = summary(run(toy_engine(LAW, None, vocab_size=VOCAB, end_token_ids=ENDS), PROMPTS, params))
    assert all(error is None for error, *_ in plain)
    for name, make in DRAFTERS.items():
        drafted = run(toy_engine(LAW, make(), vocab_size=VOCAB, k=4, end_token_ids=ENDS), PROMPTS, params)
        assert summary(drafted) == plain, name
        assert not any("inactive" in output.metrics.speculation for output in drafted), name


@pytest.mark.parametrize(
    "parameter", sorted(set(PARAMETERS) - {"none", "logprobs", "stop_token_ids", "stop", "min_tokens"})
)
def test_each_parameter_makes_a_difference(parameter: str) -> None:
    def answers(settings: dict[str, Any]) -> list[Any]:
        params = SamplingParams(max_tokens=20, seed=3, ignore_eos=True, **settings)
        return summary(run(toy_engine(LAW, None, vocab_size=VOCAB, end_token_ids=ENDS), PROMPTS, params))

    assert answers(PARAMETERS[parameter]) != answers({})


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_parameter_runs_unseeded(name: str) -> None:
    every = [SamplingParams(max_tokens=12, **settings) for settings in PARAMETERS.values()]
    outputs = run(toy_engine(LAW, DRAFTERS[name](), vocab_size=VOCAB, end_token_ids=ENDS), [[1, 2]] * len(every), every)
    assert [output.error for output in outputs] == [None] * len(every)
    allowed = outputs[list(PARAMETERS).index("allowed_token_ids")].outputs[0].token_ids
    assert set(allowed) <= {1, 4, 6, 7}


def test_min_tokens_holds_back_end_tokens_and_stop_strings() -> None:
    def law(context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.array([0.05, 0.15, 0.8])

    for k in (0, 3):
        engine = toy_engine(law, ScriptedDrafter(lambda r, k: [2] * k), vocab_size=3, k=k, end_token_ids=frozenset({2}))
        params = SamplingParams(temperature=0.0, min_tokens=5, max_tokens=9)
        (output,) = run(engine, [[0]], params)
        assert output.outputs[0].token_ids == (1, 1, 1, 1, 1, 2)
        (output,) = run(engine, [[0]], params.model_copy(update={"stop": ("bb",)}))
        assert (output.outputs[0].text, output.outputs[0].token_ids) == ("bbbbb", (1, 1, 1, 1, 1, 2))
        (output,) = run(engine, [[0]], params.model_copy(update={"stop": ("b",)}))
        assert (output.outputs[0].text, output.outputs[0].token_ids) == ("bbbb", (1, 1, 1, 1, 1))


def _raises(token_ids: tuple[int, ...], row: Weights) -> Weights:
    if len(token_ids) > 8:
        raise RuntimeError("out of ideas")
    return row


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_processor_that_raises_ends_only_its_request(name: str) -> None:
    fine = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    broken = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logits_processors=(_raises,))
    plain = run(toy_engine(LAW, None, vocab_size=VOCAB), [[1], [2]], fine)
    drafted = run(toy_engine(LAW, DRAFTERS[name](), vocab_size=VOCAB), [[1], [2], [1]], [broken, fine, fine])
    assert "logits processor '_raises' failed: RuntimeError: out of ideas" in str(drafted[0].error)
    assert drafted[0].outputs[0].finish_reason == "error"
    got = drafted[0].outputs[0].token_ids
    assert got == plain[0].outputs[0].token_ids[: len(got)]
    assert summary(drafted[1:]) == summary([plain[1], plain[0]])
    assert all("inactive" not in output.metrics.speculation for output in drafted[1:])


def test_bad_words_are_ruled_out_as_the_tokenizer_has_them() -> None:
    words = {"x": [3], " x": [4], "yz": [1, 5], " yz": [2, 5]}
    params = SamplingParams(temperature=0.0, max_tokens=40, bad_words=("x", "yz"))
    engine = toy_engine(LAW, draft_model(), vocab_size=VOCAB, encode=lambda text: words[text])
    (output,) = run(engine, [[3, 4]], params)
    token_ids = (4, *output.outputs[0].token_ids)
    assert not {3, 4} & set(token_ids[1:])
    assert not {(1, 5), (2, 5)} & set(itertools.pairwise(token_ids))


@pytest.mark.parametrize(
    ("settings", "param"),
    [({"logit_bias": {VOCAB: 1.0}}, "logit_bias"), ({"bad_words": "x"}, "bad_words"), ({"n": 2}, "n")],
)
def test_what_this_engine_can_not_serve_is_refused_and_leaves_nothing(settings: dict[str, Any], param: str) -> None:
    engine = toy_engine(LAW, None, vocab_size=VOCAB)
    with pytest.raises(InvalidRequestError) as caught:
        engine.add_request("x", [1], SamplingParams(**settings))
    assert caught.value.param == param
    assert not engine.has_requests
    assert not engine._laws
