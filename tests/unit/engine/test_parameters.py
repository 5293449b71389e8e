"""Every sampling parameter with every drafter: what is emitted is what the target alone emits.

Both tables are complete: a drafter or a parameter that is not in them fails a test.
"""

from __future__ import annotations

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.config import KnownMethod
from outrider.drafters.base import Drafter
from outrider.engine.engine import Engine
from outrider.errors import InvalidRequestError
from outrider.outputs import RequestOutput
from outrider.sampling.noise import Weights
from outrider.sampling_params import SamplingParams
from tests.unit.engine.every_drafter import (
    DISTRIBUTION,
    DRAFTERS,
    LETTERS,
    METHODS,
    PREDICTION,
    PROMPTS,
    VOCAB,
    draft_model,
)
from tests.unit.engine.helpers import Composite, ScriptedDrafter, run, toy_engine
from tests.unit.sampling.toy_grammar import LetterGrammars

ENDS = frozenset({8})


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
    "temperature": {"temperature": 0.4, "seed": 5},
    "max_tokens": {"max_tokens": 7},
    "ignore_eos": {"ignore_eos": True},
    "bad_words": {"bad_words": ("c", "ea")},
    "structured_outputs": {"structured_outputs": {"regex": "([a-d][e-h]){2,9}"}},
    "structured_outputs after a marker": {"structured_outputs": {"regex": "[a-f]{3,9}", "after": "h"}},
    "logprobs_mode": {"logprobs": 2, "logprobs_mode": "processed", "top_p": 0.8},
    "token_details": {"token_details": True},
    "skip_special_tokens": {"skip_special_tokens": False},
    "num_speculative_tokens": {"num_speculative_tokens": 2},
    "speculative_method": {"speculative_method": "off"},
    "all": {"top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2, "logit_bias": {2: 1.0}, "min_tokens": 5},
}


HARMLESS = {
    *("logprobs", "logprobs_mode", "token_details", "skip_special_tokens"),
    *("num_speculative_tokens", "speculative_method"),
}
"""These do not change the tokens, with or without speculation."""
GIVEN = {"seed": "how", "prediction": "each request has one"}
"""Parameters that every request here has, besides what the table says."""
ELSEWHERE = {"n": "tests/integration/test_llm.py: an engine's request has one answer"}


def engine(drafter: Drafter | Composite | None, **settings: Any) -> Engine:
    """Over the letters: with grammars, and words for ``bad_words``."""
    return toy_engine(
        DISTRIBUTION,
        drafter,
        vocab_size=VOCAB,
        end_token_ids=ENDS,
        grammars=LetterGrammars(VOCAB),
        encode=lambda text: [LETTERS.index(letter) for letter in text.strip()],
        **settings,
    )


def test_the_tables_are_complete() -> None:
    named = {key for settings in PARAMETERS.values() for key in settings} | {*GIVEN, *ELSEWHERE}
    assert named == set(SamplingParams.model_fields)
    assert set(METHODS) == {*get_args(KnownMethod), "plug-in"} - {"off"}


def summary(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (
            out.error,
            out.prompt_logprobs,
            out.outputs[0].logprobs,
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
    params = SamplingParams(**{"max_tokens": 16, "prediction": PREDICTION, **how, **PARAMETERS[parameter]})
    plain = summary(run(engine(None), PROMPTS, params))
    assert all(error is None for error, *_ in plain)
    for name, make in DRAFTERS.items():
        drafted = run(engine(make(), k=4), PROMPTS, params)
        assert summary(drafted) == plain, name
        if params.speculates:
            assert all(output.metrics.speculation.active for output in drafted), name


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_of_the_table_drafts(name: str) -> None:
    params = SamplingParams(seed=3, max_tokens=16, prediction=PREDICTION, ignore_eos=True)
    outputs = run(engine(DRAFTERS[name](), k=4), PROMPTS, params)
    stats = [output.metrics.speculative_decoding for output in outputs]
    assert sum(each.num_draft_tokens for each in stats) > sum(each.num_accepted_draft_tokens for each in stats) > 0


@pytest.mark.parametrize(
    "parameter", sorted(set(PARAMETERS) - {"none", *HARMLESS, "stop_token_ids", "stop", "min_tokens", "ignore_eos"})
)
def test_each_parameter_makes_a_difference(parameter: str) -> None:
    def answers(settings: dict[str, Any]) -> list[Any]:
        ignore = "structured_outputs" not in settings
        params = SamplingParams(**{"max_tokens": 20, "seed": 3, "ignore_eos": ignore, **settings})
        return [output.outputs[0].token_ids for output in run(engine(None), PROMPTS, params)]

    assert answers(PARAMETERS[parameter]) != answers({})


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_parameter_runs_unseeded(name: str) -> None:
    every = [
        SamplingParams(**{"max_tokens": 12, "prediction": PREDICTION, **settings}) for settings in PARAMETERS.values()
    ]
    outputs = run(engine(DRAFTERS[name]()), [[1, 2]] * len(every), every)
    assert [output.error for output in outputs] == [None] * len(every)
    allowed = outputs[list(PARAMETERS).index("allowed_token_ids")].outputs[0].token_ids
    assert set(allowed) <= {1, 4, 6, 7}


def test_min_tokens_holds_back_end_tokens_and_stop_strings() -> None:
    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.array([0.05, 0.15, 0.8])

    for k in (0, 3):
        engine = toy_engine(
            distribution, ScriptedDrafter(lambda r, k: [2] * k), vocab_size=3, k=k, end_token_ids=frozenset({2})
        )
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
    plain = run(toy_engine(DISTRIBUTION, None, vocab_size=VOCAB), [[1], [2]], fine)
    drafted = run(toy_engine(DISTRIBUTION, DRAFTERS[name](), vocab_size=VOCAB), [[1], [2], [1]], [broken, fine, fine])
    assert "logits processor '_raises' failed: RuntimeError: out of ideas" in str(drafted[0].error)
    assert drafted[0].outputs[0].finish_reason == "error"
    got = drafted[0].outputs[0].token_ids
    assert got == plain[0].outputs[0].token_ids[: len(got)]
    assert summary(drafted[1:]) == summary([plain[1], plain[0]])
    assert all(output.metrics.speculation.active for output in drafted[1:])


def test_bad_words_are_ruled_out_as_the_tokenizer_has_them() -> None:
    words = {"x": [3], " x": [4], "yz": [1, 5], " yz": [2, 5]}
    params = SamplingParams(temperature=0.0, max_tokens=40, bad_words=("x", "yz"))
    engine = toy_engine(DISTRIBUTION, draft_model(), vocab_size=VOCAB, encode=lambda text: words[text])
    (output,) = run(engine, [[3, 4]], params)
    token_ids = (4, *output.outputs[0].token_ids)
    assert not {3, 4} & set(token_ids[1:])
    assert not {(1, 5), (2, 5)} & set(itertools.pairwise(token_ids))


@pytest.mark.parametrize(
    ("settings", "param"),
    [({"logit_bias": {VOCAB: 1.0}}, "logit_bias"), ({"bad_words": "x"}, "bad_words"), ({"n": 2}, "n")],
)
def test_what_this_engine_can_not_serve_is_refused_and_leaves_nothing(settings: dict[str, Any], param: str) -> None:
    engine = toy_engine(DISTRIBUTION, None, vocab_size=VOCAB)
    with pytest.raises(InvalidRequestError) as caught:
        engine.add_request("x", [1], SamplingParams(**settings))
    assert caught.value.param == param
    assert not engine.has_requests
    assert not engine._requests
