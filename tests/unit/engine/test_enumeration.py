"""The whole engine under enumerating noise: the joint distribution of what it emits is the target's, exactly."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider import native
from outrider.audit.enumerate import EnumeratingNoise
from outrider.config import CrossVocabAlgorithm
from outrider.drafters.base import Drafter, DraftRequest
from outrider.drafters.cross_vocab import CrossVocabDrafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.text_index import DraftLookUp
from outrider.engine.engine import Verify
from outrider.engine.verify import verify
from outrider.models.logits import ArrayLogits, Logits
from outrider.models.tokenizer import Tokenizer
from outrider.models.vocabulary import Vocabulary
from outrider.request_state import RequestState
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.noise import Noise, Weights
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling_params import SamplingParams
from outrider.verification import oracle
from outrider.verification.base import Proposal, VerifyResult
from outrider.verification.registry import VERIFIERS, Coupling
from tests.toy import ToyModel, random_table
from tests.unit.engine.helpers import Composite, KSchedule, ScriptedDrafter, distance, run, toy_engine
from tests.unit.models.other_vocabularies import spelled

VOCAB = 3
DISTRIBUTION = random_table(VOCAB, seed=6, order=3)
DRAFT = random_table(VOCAB, seed=7, order=3)
PROMPT = [0, 1, 0, 1]
LENGTH = 3


def trimmed() -> Drafter:
    """A draft whose output was trimmed to two of the target's tokens."""
    kept = [0, 2]

    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.asarray(DRAFT(context)[kept] / DRAFT(context)[kept].sum())

    runner = ModelRunner(ToyModel(len(kept), distribution), num_blocks=8, block_size=2)
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=16, token_ids=kept)


def composite(model: Drafter) -> Composite:
    """Retrieval where it finds two tokens in a row that occurred before, else the model: both happen in one request."""
    return Composite([NGramDrafter(min_match=2, max_match=2)], model)


def draft_model(coupled: Coupling = "seeded", tree_width: int = 1) -> Drafter:
    runner = ModelRunner(ToyModel(VOCAB, DRAFT), num_blocks=8, block_size=2)
    return DraftModelDrafter(
        runner, target_vocab_size=VOCAB, max_num_batched_tokens=16, coupled=coupled, tree_width=tree_width
    )


OWN = spelled(["b", "<|end|>", "a", "ba", "ab"], merges=[("b", "a"), ("a", "b")], end="<|end|>")
"""A draft's vocabulary, over the targets below: a and b and an end, in another order, and pairs of letters."""
WITH_PAIR = spelled(["a", "b", "ab"], merges=[("a", "b")])
WITH_END = spelled(["a", "b", "<stop>"], end="<stop>")


def cross_vocab(
    algorithm: CrossVocabAlgorithm = "tli",
    coupled: Coupling = "seeded",
    target: Tokenizer = WITH_PAIR,
    kind: type[CrossVocabDrafter] = CrossVocabDrafter,
) -> Drafter:
    runner = ModelRunner(ToyModel(5, random_table(5, seed=8, order=3, sharpness=1.5)), num_blocks=8, block_size=2)
    own, others = Vocabulary(OWN), Vocabulary(target)
    return kind(
        runner,
        own=own,
        target=others,
        target_vocab_size=VOCAB,
        max_num_batched_tokens=16,
        coupled=coupled,
        algorithm=algorithm,
    )


DRAFTERS: dict[str, Callable[[], Drafter | Composite]] = {
    "ngram": lambda: NGramDrafter(min_match=1, max_match=2),
    "draft_model": draft_model,
    "tree": lambda: draft_model(tree_width=2),
    "tli": cross_vocab,
    "tli with an end": lambda: cross_vocab(target=WITH_END),
    "slem": lambda: cross_vocab("slem"),
    "trimmed": trimmed,
    "composite": lambda: composite(draft_model()),
    "composite with tli": lambda: composite(cross_vocab()),
    "prediction": lambda: Composite([PredictionDrafter()]),
    "own": lambda: ScriptedDrafter(lambda request, k: [0, 2, 1][-k:]),
    **({"suffix": SuffixDrafter} if native.available() else {}),
}
PREDICTION = (0, 2, 1, 1)
"""What every request here says that its answer will be."""


def distribution_of_strings(params: SamplingParams, end: frozenset[int]) -> dict[tuple[int, ...], float]:
    """The target alone: every output, cut at an end token, with its probability."""
    strings: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(VOCAB), repeat=params.max_tokens):
        probability, out = 1.0, tuple[int, ...]()
        for token in tokens:
            logits = oracle.edited_logits(np.log(DISTRIBUTION((*PROMPT, *out))), params, PROMPT, out, end)
            probability *= float(oracle.processed_probs(logits, params)[token])
            out = (*out, token)
            if token in end:
                break
        strings[out] = strings.get(out, 0.0) + probability * VOCAB ** -(params.max_tokens - len(out))
    return strings


def total_variation(
    make: Callable[[], Drafter | Composite],
    k: int | KSchedule,
    params: SamplingParams,
    end: frozenset[int] = frozenset(),
    verify_with: Verify = verify,
    noise_of: Callable[[EnumeratingNoise], EnumeratingNoise] = lambda noise: noise,
) -> float:
    def once(enumerating: EnumeratingNoise) -> tuple[int, ...]:
        noise = noise_of(enumerating)
        engine = toy_engine(
            DISTRIBUTION,
            make(),
            vocab_size=VOCAB,
            k=k,
            num_blocks=8,
            block_size=2,
            end_token_ids=end,
            verify_with=verify_with,
            noise_for=lambda seed: noise,
        )
        asked = SamplingParams(**{**params.model_dump(), "prediction": PREDICTION})
        token_ids = run(engine, [PROMPT], asked)[0].outputs[0].token_ids
        enumerating.probability = noise.probability
        return token_ids

    return distance(once, distribution_of_strings(params, end))


PARAMS = [
    SamplingParams(max_tokens=LENGTH),
    SamplingParams(max_tokens=LENGTH, temperature=0.6, top_k=2),
    SamplingParams(max_tokens=LENGTH, top_p=0.7),
    SamplingParams(max_tokens=LENGTH, temperature=0.0),
]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("params", PARAMS, ids=["plain", "top-k", "top-p", "greedy"])
def test_the_engine_emits_the_targets_distribution(name: str, k: int, params: SamplingParams) -> None:
    assert total_variation(DRAFTERS[name], k, params) < 1e-12


LONGER = SamplingParams(max_tokens=4, temperature=0.7, top_k=2)


@pytest.mark.parametrize(("method", "coupled"), [("standard", "none"), ("block", "none"), ("coupled", "all")])
@pytest.mark.parametrize("params", [*PARAMS[:3], LONGER], ids=["plain", "top-k", "top-p", "longer"])
def test_every_way_to_verify_emits_the_targets_distribution(
    method: str, coupled: Coupling, params: SamplingParams
) -> None:
    assert (
        total_variation(
            lambda: draft_model(coupled), 2, params, verify_with=partial(verify, verifier=VERIFIERS[method])
        )
        < 1e-12
    )


@pytest.mark.parametrize(("method", "coupled"), [("standard", "none"), ("block", "none"), ("coupled", "all")])
@pytest.mark.parametrize("params", [*PARAMS[:3], LONGER], ids=["plain", "top-k", "top-p", "longer"])
@pytest.mark.parametrize("target", [WITH_PAIR, WITH_END], ids=["pair", "end"])
def test_every_way_to_verify_drafts_of_another_vocabulary_emits_the_targets_distribution(
    method: str, coupled: Coupling, params: SamplingParams, target: Tokenizer
) -> None:
    faithful, end = partial(verify, verifier=VERIFIERS[method]), frozenset({2} if target is WITH_END else ())
    assert total_variation(lambda: cross_vocab("tli", coupled, target), 2, params, end, verify_with=faithful) < 1e-12


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
@pytest.mark.parametrize(("method", "coupled"), [("block", "none"), ("coupled", "all")])
def test_a_draft_model_that_looks_its_own_tokens_up_emits_the_targets_distribution(
    method: str, coupled: Coupling, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []

    def look_up(self: DraftLookUp, drafted: Sequence[int], most: int) -> list[int]:
        found = find(self, drafted, most)
        looked_up.append(len(found))
        return found

    find = DraftLookUp.__call__
    monkeypatch.setattr(DraftLookUp, "__call__", look_up)
    params = SamplingParams(max_tokens=5, temperature=0.7, top_k=2)
    faithful = partial(verify, verifier=VERIFIERS[method])
    assert total_variation(lambda: draft_model(coupled), 3, params, verify_with=faithful) < 1e-12
    assert any(looked_up)


def _without_a_drawn_last(proposal: Proposal, probs: tuple[Weights, ...]) -> Proposal:
    kept = len(proposal) - (proposal.token_ids[-1] == 1)
    return Proposal(proposal.token_ids[:kept], probs[:kept])


def _with_misplaced_probs(proposal: Proposal, probs: tuple[Weights, ...]) -> Proposal:
    return Proposal(proposal.token_ids, tuple(row[[1, 0, 2]] for row in probs))


@pytest.mark.parametrize("fault", [_without_a_drawn_last, _with_misplaced_probs])
def test_faults_of_drafts_of_another_vocabulary_are_seen(
    fault: Callable[[Proposal, tuple[Weights, ...]], Proposal],
) -> None:
    class Faulty(CrossVocabDrafter):
        def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
            return [fault(p, p.probs) if p.probs else p for p in super().propose(batch)]

    assert total_variation(lambda: cross_vocab(kind=Faulty), 2, LONGER) > 1e-3


TREE_LENGTH = 4
"""The first token comes without drafts, the next step may accept two levels, and its successor none or one."""


@pytest.mark.parametrize(
    ("method", "coupled"),
    [("auto", "seeded"), ("standard", "none"), ("block", "none"), ("coupled", "all")],
)
@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.6, "top_k": 2}, {"frequency_penalty": 1.2}, {"min_tokens": 3}]
)
def test_every_way_to_verify_trees_emits_the_targets_distribution(
    changes: dict[str, float], width: int, method: str, coupled: Coupling
) -> None:
    params = SamplingParams(max_tokens=TREE_LENGTH, **changes)  # type: ignore[arg-type]
    faithful = partial(verify, verifier=VERIFIERS[method])
    make = partial(draft_model, coupled, width)
    k = KSchedule(lambda request: 3 if request.num_output_tokens == 1 else 2)
    assert total_variation(make, k, params, end=frozenset({2}), verify_with=faithful) < 1e-12


def test_noise_that_forgets_the_step_is_seen() -> None:
    """Block verification looks at drafts that it throws away; the next step must not meet their noise again."""

    class Forgetful(EnumeratingNoise):
        def at_step(self, start: int) -> Forgetful:  # type: ignore[override]
            return self

    # The first token has no drafts, so only from four tokens on does a step with two drafts have a successor.
    def faulty(k: int) -> float:
        return total_variation(draft_model, k, LONGER, noise_of=lambda noise: Forgetful(noise._script))

    assert faulty(2) > 1e-3
    assert faulty(1) < 1e-12, "one draft alone is never thrown away unseen"


EDITED = {
    "penalties": {"repetition_penalty": 1.7, "frequency_penalty": 0.8, "presence_penalty": -0.5},
    "logit bias and bad sequences": {"logit_bias": {0: 1.0}, "bad_token_ids": ((1, 2), (0, 0))},
    "min_tokens": {"min_tokens": 2},
    "truncations": {"temperature": 1.3, "min_p": 0.2, "typical_p": 0.9},
}


@pytest.mark.parametrize("method", ["auto", "standard"])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("parameters", EDITED)
def test_the_distribution_holds_whatever_edits_it(parameters: str, name: str, method: str) -> None:
    params = SamplingParams(max_tokens=4, **EDITED[parameters])  # type: ignore[arg-type]
    faithful = partial(verify, verifier=VERIFIERS[method])
    assert total_variation(DRAFTERS[name], 2, params, end=frozenset({2}), verify_with=faithful) < 1e-12


def test_penalties_that_do_not_see_the_drafts_are_seen() -> None:
    class Blind(RequestSampler):
        def edited(self, logits: Weights, committed: Sequence[int], drafted: Sequence[int] = ()) -> Weights:
            return super().edited(logits, committed)

    def faulty(request: RequestState, proposal: Proposal, logits: Logits, noise: Noise) -> VerifyResult:
        blind = copy.copy(request)
        blind.sampler = Blind(request.params, request.prompt_token_ids, vocab_size=VOCAB)
        return verify(blind, proposal, logits, noise)

    params = SamplingParams(max_tokens=4, frequency_penalty=1.5)
    for name in ("ngram", "draft_model", "tree", "tli", "slem"):
        assert total_variation(DRAFTERS[name], 2, params, verify_with=faulty) > 1e-3, name


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_distribution_holds_with_an_end_inside_the_block(name: str) -> None:
    assert total_variation(DRAFTERS[name], 2, PARAMS[0], end=frozenset({2})) < 1e-12


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_distribution_holds_when_k_follows_what_was_emitted(name: str) -> None:
    k = KSchedule(lambda request: (request.token_ids[-1] + request.num_output_tokens) % 3)
    assert total_variation(DRAFTERS[name], k, PARAMS[0]) < 1e-12


def _wrong_row(request: RequestState, proposal: Proposal, logits: Logits, noise: Noise) -> VerifyResult:
    return verify(request, proposal, ArrayLogits(np.roll(logits.rows(slice(None)), 1, axis=0)), noise)


def _bonus_from_the_row_before(request: RequestState, proposal: Proposal, logits: Logits, noise: Noise) -> VerifyResult:
    faulty = logits.rows(slice(None)).copy()
    faulty[-1] = logits.row(max(0, len(logits) - 2))
    return verify(request, proposal, ArrayLogits(faulty), noise)


def _accepts_everything(request: RequestState, proposal: Proposal, logits: Logits, noise: Noise) -> VerifyResult:
    result = verify(request, Proposal(), logits[-1:], noise)
    return VerifyResult(len(proposal), result.token_id, "bonus")


@pytest.mark.parametrize("faulty", [_wrong_row, _bonus_from_the_row_before, _accepts_everything])
def test_a_faulty_step_is_seen(faulty: Verify) -> None:
    assert total_variation(DRAFTERS["draft_model"], 2, PARAMS[0], verify_with=faulty) > 1e-3
