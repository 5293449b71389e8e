"""Random arrivals, steps and aborts over tiny caches: every block comes back, every answer is the solo one."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.drafters.base import Drafter
from outrider.drafters.cross_vocab import CrossVocabDrafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.models.vocabulary import Vocabulary
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from outrider.speculation.adaptive import AdaptivePolicy, ModelDrafting
from outrider.speculation.costs import DraftCosts, PassCosts
from outrider.speculation.speculator import Speculator
from tests.toy import ToyModel, random_table
from tests.unit.engine.helpers import drain, run, toy_engine
from tests.unit.models.other_vocabularies import spelled

VOCAB = 5
DISTRIBUTION = random_table(VOCAB, seed=2, sharpness=2.0)
DRAFT_DISTRIBUTION = random_table(VOCAB, seed=3, sharpness=2.0)
MAX_LEN = 24

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.0]),
    top_k=st.sampled_from([0, 3]),
    seed=st.integers(0, 3),
    max_tokens=st.integers(1, 16),
    ignore_eos=st.booleans(),
)
ADD = st.tuples(st.just("add"), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=MAX_LEN - 1), PARAMS)
STEP = st.tuples(st.just("step"), st.integers(1, 5), st.none())
ABORT = st.tuples(st.just("abort"), st.integers(0, 10), st.none())


def _policy() -> AdaptivePolicy:
    """Chooses from the real clock, so that each run goes another way; no answer may depend on it."""
    model = ModelDrafting("draft_model", DraftCosts(PassCosts({1: 1e-4})), max_tokens=4)
    return AdaptivePolicy(PassCosts({1: 1e-3, 8: 1.2e-3}), num_speculative_tokens=5, model=model)


def _drafter(kind: str) -> Drafter | None:
    if kind == "ngram":
        return NGramDrafter(min_match=1, max_match=3)
    if kind.startswith("draft_model"):
        runner = ModelRunner(ToyModel(VOCAB, DRAFT_DISTRIBUTION), num_blocks=12, block_size=2)
        width = int(kind.removeprefix("draft_model") or 1)
        return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=8, tree_width=width)
    if kind in ("tli", "slem"):
        runner = ModelRunner(ToyModel(6, random_table(6, seed=4, sharpness=2.0)), num_blocks=12, block_size=2)
        own = spelled(["c", "ab", "a", "<x>", "d", "b"], merges=[("a", "b")], end="<x>")
        target = spelled(["<end>", "a", "b", "c", "bc"], merges=[("b", "c")], end="<end>")
        return CrossVocabDrafter(
            runner,
            own=Vocabulary(own),
            target=Vocabulary(target),
            target_vocab_size=VOCAB,
            max_num_batched_tokens=8,
            algorithm=kind,  # type: ignore[arg-type]
        )
    return None


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    operations=st.lists(st.one_of(ADD, ADD, STEP, ABORT), max_size=25),
    kind=st.sampled_from(["none", "ngram", "draft_model", "draft_model2", "draft_model3", "tli", "slem", "adaptive"]),
    k=st.integers(0, 5),
    num_blocks=st.integers(12, 20),
    priorities=st.lists(st.integers(-1, 2), min_size=1, max_size=5),
    max_num_seqs=st.integers(1, 5),
    budget=st.integers(1, 20),
)
def test_every_block_comes_back_and_every_answer_is_the_solo_one(
    operations: list[tuple[str, object, object]],
    kind: str,
    k: int,
    num_blocks: int,
    priorities: list[int],
    max_num_seqs: int,
    budget: int,
) -> None:
    model = _drafter("draft_model" if kind == "adaptive" else kind)
    retrieval: list[Drafter] = [PredictionDrafter(), NGramDrafter(min_match=1, max_match=3)]
    engine = toy_engine(
        DISTRIBUTION,
        Speculator(retrieval, model, _policy()) if kind == "adaptive" else model,
        vocab_size=VOCAB,
        k=k,
        num_blocks=num_blocks,
        block_size=2,
        max_model_len=MAX_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        end_token_ids=frozenset({0}),
    )
    added: list[tuple[list[int], SamplingParams]] = []
    for operation, what, params in operations:
        if operation == "add":
            assert isinstance(what, list)
            assert isinstance(params, SamplingParams)
            priority = priorities[len(added) % len(priorities)]
            engine.add_request(str(len(added)), what, params, priority=priority)
            added.append((what, params))
        elif operation == "step":
            for _ in range(int(str(what))):
                engine.step()
                engine.check_integrity()
        else:
            engine.abort(str(what))
        engine.check_integrity()
    drain(engine)
    if isinstance(model, (DraftModelDrafter, CrossVocabDrafter)):
        model.check_integrity()
        assert model._passes._runner.kv.num_free_blocks == model._passes._runner.kv.num_blocks
    for index, (prompt, params) in enumerate(added):
        completion = engine.take_output(str(index)).outputs[0]
        solo = toy_engine(DISTRIBUTION, None, vocab_size=VOCAB, max_model_len=MAX_LEN, end_token_ids=frozenset({0}))
        expected = run(solo, [prompt], params)[0].outputs[0]
        if completion.finish_reason == "abort":
            assert completion.token_ids == expected.token_ids[: len(completion.token_ids)]
        else:
            assert completion.token_ids == expected.token_ids
            assert completion.finish_reason == expected.finish_reason
