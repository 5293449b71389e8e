"""Structured output through the engine: its exact distribution with every verifier, 200 schemas, illegal drafts,
markers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.audit.enumerate import EnumeratingNoise
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.engine.engine import Engine, Verify
from outrider.engine.verify import verify
from outrider.models.logits import Logits
from outrider.request_state import RequestState
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import GrammarCompiler
from outrider.sampling.noise import Noise
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling_params import SamplingParams, StructuredOutputs
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.registry import VERIFIERS, Coupling
from tests.toy import ToyModel, random_table
from tests.unit.engine.helpers import ScriptedDrafter, distance, drain, engine_of, run, toy_engine
from tests.unit.sampling.byte_tokenizer import END_TOKEN, byte_tokenizer
from tests.unit.sampling.toy_grammar import LetterGrammars

# --- the distribution, exactly: letters a and b, and an end token
# --------------------------------------------------------

VOCAB, END = 3, 2
REGEX = "ab?|ba{1,2}|bb"
WORDS = [
    word
    for n in range(1, 4)
    for word in itertools.product(range(END), repeat=n)
    if re.fullmatch(REGEX, "".join("ab"[token] for token in word))
]
DISTRIBUTION = random_table(VOCAB, seed=6, order=3)
DRAFT = random_table(VOCAB, seed=7, order=3)
PROMPT = [0, 1, 0]


def expected_strings(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The target's distribution with the grammar, renormalised at every place; words end with the end token."""
    strings: dict[tuple[int, ...], float] = {}

    def go(out: tuple[int, ...], probability: float) -> None:
        if len(out) == params.max_tokens or (out and out[-1] == END):
            strings[out] = probability
            return
        following = {word[len(out)] for word in WORDS if len(word) > len(out) and word[: len(out)] == out}
        following |= {END} if out in WORDS else set()
        row = np.full(VOCAB, -np.inf)
        for token in following:
            row[token] = np.log(DISTRIBUTION((*PROMPT, *out)))[token]
        probs = RequestSampler(params.model_copy(update={"structured_outputs": None}), [], vocab_size=VOCAB).probs(
            row, []
        )
        for token in following:
            if probs[token] > 0.0:
                go((*out, token), probability * float(probs[token]))

    go((), 1.0)
    return strings


def draft_model(coupled: Coupling = "seeded", tree_width: int = 1) -> Drafter:
    runner = ModelRunner(ToyModel(VOCAB, DRAFT), num_blocks=8, block_size=2)
    return DraftModelDrafter(
        runner, target_vocab_size=VOCAB, max_num_batched_tokens=16, coupled=coupled, tree_width=tree_width
    )


def total_variation(
    make: Callable[[], Drafter | None],
    params: SamplingParams,
    *,
    k: int = 2,
    verify_with: Verify = verify,
    change: Callable[[Any], Any] = lambda grammar: grammar,
) -> float:
    def once(noise: EnumeratingNoise) -> tuple[int, ...]:
        engine = toy_engine(
            DISTRIBUTION,
            make(),
            vocab_size=VOCAB,
            k=k,
            num_blocks=8,
            block_size=2,
            end_token_ids=frozenset({END}),
            grammars=LetterGrammars(VOCAB, change),
            verify_with=verify_with,
            noise_for=lambda seed: noise,
        )
        return run(engine, [PROMPT], params)[0].outputs[0].token_ids

    return distance(once, expected_strings(params))


def wanted(**keys: Any) -> StructuredOutputs:
    return StructuredOutputs(**keys)


def params_of(**keys: Any) -> SamplingParams:
    return SamplingParams(max_tokens=4, structured_outputs=wanted(regex=REGEX), **keys)


WAYS: dict[str, tuple[Callable[[], Drafter | None], str]] = {
    "off": (lambda: None, "auto"),
    "ngram": (lambda: NGramDrafter(min_match=1, max_match=2), "auto"),
    "block": (lambda: draft_model("none"), "block"),
    "standard": (lambda: draft_model("none"), "standard"),
    "coupled": (lambda: draft_model("all"), "coupled"),
    "tree, traversal": (lambda: draft_model("none", 2), "block"),
    "tree, child by child": (lambda: draft_model("none", 3), "standard"),
    "tree, coupled": (lambda: draft_model("all", 3), "coupled"),
    "illegal": (lambda: ScriptedDrafter(lambda request, k: [END, 0, 1][:k]), "auto"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keys", [{}, {"temperature": 0.6, "top_k": 2}, {"top_p": 0.7}, {"temperature": 0.0}], ids=str)
def test_the_emitted_distribution_is_the_targets_within_the_grammar(way: str, keys: dict[str, Any]) -> None:
    make, method = WAYS[way]
    assert total_variation(make, params_of(**keys), verify_with=partial(verify, verifier=VERIFIERS[method])) < 1e-12


def _drop_illegal_and_sample_afresh(
    request: RequestState, proposal: Proposal, logits: Logits, noise: Noise
) -> VerifyResult:
    """The fault: a drawn draft that the grammar rules out is dropped and the target asked afresh."""
    count = request.sampler.num_legal(request.token_ids, proposal.token_ids)
    probs = None if proposal.probs is None else proposal.probs[:count]
    return verify(request, Proposal(proposal.token_ids[:count], probs), logits, noise)


class _Unmasked(DraftModelDrafter):
    """Drafts without looking at the request's grammar."""

    def propose(self, batch: Sequence[Any]) -> list[Proposal]:
        from dataclasses import replace

        plain = [
            replace(entry, sampler=RequestSampler(SamplingParams(), entry.request.prompt_token_ids, vocab_size=VOCAB))
            for entry in batch
        ]
        return super().propose(plain)


def _unmasked() -> Drafter:
    runner = ModelRunner(ToyModel(VOCAB, DRAFT), num_blocks=8, block_size=2)
    return _Unmasked(runner, target_vocab_size=VOCAB, max_num_batched_tokens=16, coupled="none")


def test_drafts_drawn_without_the_grammar_cost_nothing_but_acceptance() -> None:
    assert total_variation(_unmasked, params_of()) < 1e-12


def test_planted_faults_are_caught() -> None:
    assert total_variation(_unmasked, params_of(), verify_with=_drop_illegal_and_sample_afresh) > 1e-3

    class OnePlaceLate:
        def __init__(self, grammar: Any) -> None:
            self._grammar = grammar

        def allowed(self, output: Sequence[int], drafted: Sequence[int] = ()) -> Any:
            return self._grammar.allowed(output, drafted[:-1])

        def num_legal(self, output: Sequence[int], drafted: Sequence[int]) -> int:
            return int(self._grammar.num_legal(output, drafted))

    late = total_variation(lambda: draft_model("none"), params_of(), change=OnePlaceLate)
    assert late > 1e-3


# --- texts: a random model over bytes -----------------------------------------------------------------------------

BYTES = 272
TOKENIZER = byte_tokenizer()


def byte_distribution(context: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    rng = np.random.default_rng([len(context), *context[-2:]])
    weights = np.exp(2.0 * rng.standard_normal(BYTES))
    weights[[ord(letter) for letter in ' \n\t"}],']] *= [0.01, 0.01, 0.01, 30.0, 30.0, 30.0, 3.0]
    distribution: np.ndarray[Any, np.dtype[np.float64]] = weights / weights.sum()
    return distribution


def byte_engine(drafter: Drafter | None, *, k: int = 3) -> Engine:
    runner = ModelRunner(ToyModel(BYTES, byte_distribution), num_blocks=512, block_size=4)
    return engine_of(
        runner,
        drafter,
        k,
        new_stream=lambda _: Bytes(),
        max_model_len=600,
        seed=0,
        end_token_ids=frozenset({END_TOKEN}),
        grammars=GrammarCompiler(TOKENIZER.to_str, BYTES, [END_TOKEN]),
    )


class Bytes:
    """Texts of the byte tokenizer, a character at a time."""

    def __init__(self) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token_id: int) -> str:
        return self._stream.step(TOKENIZER, token_id) or ""

    def finish(self) -> str:
        return ""


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.just({"type": "string", "maxLength": 6}),
        st.builds(lambda low: {"type": "integer", "minimum": low, "maximum": low + 50}, st.integers(-20, 1000)),
        st.just({"type": "number", "minimum": 0, "maximum": 9}),
        st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(["a", "é", 1, None, True]), min_size=1,
                                                            max_size=3, unique_by=repr)),
    )  # fmt: skip

    def nest(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        arrays = st.builds(
            lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
            inner, st.integers(0, 2), st.integers(0, 2),
        )  # fmt: skip
        objects = st.builds(
            lambda fields, some: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields)[:some],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["id", "name", "größe", "x y"]), inner, max_size=3), st.integers(0, 3),
        )  # fmt: skip
        return st.one_of(arrays, objects)

    return st.recursive(leaves, nest, max_leaves=4)


NEIGHBOUR = SamplingParams(temperature=1.0, seed=5, max_tokens=20)


@settings(max_examples=200)
@given(schema=schemas(), seed=st.integers(0, 2**32))
def test_outputs_of_random_schemas_parse_whatever_is_drafted_and_neighbours_are_unharmed(
    schema: dict[str, Any], seed: int
) -> None:
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=300, structured_outputs=wanted(json=schema))
    illegal = ScriptedDrafter(lambda request, k: [ord("~"), 0xFF, END_TOKEN][:k])
    plain, neighbour = (_answer(byte_engine(None), [each])[0] for each in (params, NEIGHBOUR))
    for drafter in (illegal, NGramDrafter(min_match=1, max_match=3)):
        assert _answer(byte_engine(drafter), [params, NEIGHBOUR]) == [plain, neighbour]
    token_ids, text, reason = plain
    if reason == "stop":
        assert token_ids[-1] == END_TOKEN
        jsonschema.validate(json.loads(text), schema)
    else:
        assert len(token_ids) == 300


def _answer(engine: Engine, params: Sequence[SamplingParams]) -> list[tuple[tuple[int, ...], str, str | None]]:
    outputs = run(engine, [[1, 2]] * len(params), params)
    for output in outputs:
        assert output.error is None
    return [(o.outputs[0].token_ids, o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs]


def test_a_grammar_that_begins_inside_a_block() -> None:
    """Drafts cross the marker, and the places behind it are masked already in the same pass."""
    params = SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=wanted(regex="(yes|no)!", after="</x>"))
    script = b"thinking</x>yesyes!"

    def scripted_distribution(context: tuple[int, ...]) -> Any:
        distribution = np.full(BYTES, 1e-4)
        place = len(context) - 2
        distribution[script[place] if place < len(script) else END_TOKEN] = 1.0
        return distribution / distribution.sum()

    def answer(drafter: Drafter | None) -> tuple[str, int]:
        engine = byte_engine(drafter, k=8)
        engine.runner.model = ToyModel(BYTES, scripted_distribution)
        (output,) = run(engine, [[1, 2]], params)
        return output.outputs[0].text, output.metrics.speculative_decoding.num_steps

    plain, steps = answer(None)
    assert plain.startswith("thinking</x>yes")
    assert re.fullmatch(r"thinking</x>(yes|no)!", plain), "the script's second yes is ruled out"
    oracle = ScriptedDrafter(lambda request, k: list(script[request.num_tokens - 2 :][:k]))
    drafted, fewer = answer(oracle)
    assert drafted == plain
    assert fewer < steps / 3


NO_END = 'start: "q" ("a" loop | "c" "d")\nloop: "x" loop'
"""After "a" it never ends, which breaks the matcher; "q" comes first because a first token has no drafts."""


def _favours(letter: str) -> Callable[[tuple[int, ...]], Any]:
    distribution = np.full(BYTES, 1.0)
    distribution[ord(letter)] = 9.0
    return lambda context: distribution / distribution.sum()


def test_drafts_into_a_dead_end_change_nothing() -> None:
    """The draft model asks for the distribution behind the "a" that it favours; the target takes its "c" all the
    same."""
    params = SamplingParams(temperature=0.0, max_tokens=8, structured_outputs=wanted(grammar=NO_END))
    runner = ModelRunner(ToyModel(BYTES, _favours("a")), num_blocks=64, block_size=4)
    drafter = DraftModelDrafter(runner, target_vocab_size=BYTES, max_num_batched_tokens=64)
    for drafts in (None, drafter):
        engine = byte_engine(drafts)
        engine.runner.model = ToyModel(BYTES, _favours("c"))
        assert _answer(engine, [params]) == [((*b"qcd", END_TOKEN), "qcd", "stop")]


def test_a_dead_end_ends_only_its_own_request() -> None:
    engine = byte_engine(None)
    engine.runner.model = ToyModel(BYTES, _favours("a"))
    stuck = SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=wanted(grammar=NO_END))
    failed, other = run(engine, [[1], [1]], [stuck, NEIGHBOUR])
    assert "the grammar cannot continue here" in str(failed.error)
    assert failed.outputs[0].finish_reason != "stop"
    assert other.error is None
    assert len(other.outputs[0].token_ids) == 20


@pytest.mark.parametrize("drafted", [b"", b"[1,", b"[10", b"~~~"])
def test_a_stop_string_ends_a_text_inside_its_grammar(drafted: bytes) -> None:
    digits = wanted(regex=r"\[1(,10)*\]")
    params = SamplingParams(temperature=0.0, max_tokens=60, stop=(",1",), structured_outputs=digits)
    drafter = ScriptedDrafter(lambda request, k: list(drafted[request.num_output_tokens :])[:k])
    engine = byte_engine(drafter if drafted else None)
    engine.runner.model = ToyModel(BYTES, _favours(","))
    ((token_ids, text, reason),) = _answer(engine, [params])
    assert (text, reason) == ("[1", "stop")
    assert END_TOKEN not in token_ids


def test_a_grammar_without_a_way_out_ends_only_its_own_request() -> None:
    engine = byte_engine(None)
    stuck = SamplingParams(temperature=0.0, max_tokens=20, min_tokens=5, structured_outputs=wanted(choice=["ab"]))
    engine.add_request("stuck", [1], stuck)
    engine.add_request("other", [1], NEIGHBOUR)
    drain(engine)
    failed, other = engine.take_output("stuck"), engine.take_output("other")
    assert failed.error is not None
    assert "no token is allowed here: the grammar, min_tokens" in failed.error
    assert failed.outputs[0].text == "ab"
    assert other.error is None
    assert len(other.outputs[0].token_ids) == 20
