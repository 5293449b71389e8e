"""Trees of the draft model: their shape, what may be pruned, and a cache that keeps the accepted path."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from outrider.config import SpeculativeConfig
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.errors import ConfigError
from outrider.outputs import SpeculationStatus
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from outrider.verification.base import check_proposal, depths
from tests.toy import Distribution, ToyModel, random_table
from tests.unit.engine.helpers import GREEDY, recorded, run, toy_engine

VOCAB = 9
TARGET = random_table(VOCAB, seed=3, order=64, sharpness=2.0)
OTHER = random_table(VOCAB, seed=4, order=64, sharpness=1.0)
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8], [4] * 11]
SAMPLED = SamplingParams(max_tokens=24)
SEEDED = SamplingParams(max_tokens=24, seed=5)


def tree_drafter(probs: Distribution, width: int, *, num_blocks: int = 64, **settings: Any) -> DraftModelDrafter:
    runner = ModelRunner(ToyModel(VOCAB, probs), num_blocks=num_blocks, block_size=4)
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64, tree_width=width, **settings)


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_trees_have_the_shape_that_was_asked_for(params: SamplingParams, width: int, k: int) -> None:
    drafter = tree_drafter(OTHER, width)
    seen = recorded(drafter)
    outputs = run(toy_engine(TARGET, drafter, vocab_size=VOCAB, k=k), PROMPTS, params)
    assert all(output.metrics.speculation == SpeculationStatus("draft_model") for output in outputs), (
        "no proposal broke the contract"
    )
    for entry, proposal in seen:
        parents = proposal.parents or ()
        check_proposal(proposal, VOCAB, entry.max_tokens)
        assert len(proposal) == entry.max_tokens, "all that was granted is used"
        assert max(Counter(parents).values()) <= width
        expanded = Counter(depths(parents)[parent] if parent >= 0 else 0 for parent in set(parents))
        assert max(expanded.values()) <= width
        assert (proposal.probs is None) is (params is not SAMPLED)
    assert any(max(Counter(proposal.parents).values()) > 1 for _, proposal in seen) is (k > 1)
    drafter.check_integrity()
    assert drafter._passes._runner.kv.num_free_blocks == drafter._passes._runner.kv.num_blocks


def test_the_best_nodes_are_proposed_and_the_first_choice_goes_deepest() -> None:
    drafter = tree_drafter(TARGET, 2)
    seen = recorded(drafter)
    run(toy_engine(TARGET, drafter, vocab_size=VOCAB, k=5), [[1, 2]], GREEDY)
    entry, proposal = seen[0]
    context = tuple(entry.request.token_ids[: 2 + 1])

    def chance(node: int) -> float:
        path = proposal.drafted_before(node + 1)
        product = 1.0
        for place, token_id in enumerate(path):
            product *= float(TARGET((*context, *path[:place]))[token_id])
        return product

    chances = sorted((chance(node) for node in range(len(proposal))), reverse=True)
    outside = max(
        float(TARGET((*context, token_id))[other]) * float(TARGET(context)[token_id])
        for token_id in range(VOCAB)
        for other in range(VOCAB)
        if (token_id, other) not in {proposal.drafted_before(node + 1) for node in range(len(proposal))}
    )
    assert chances[-1] >= outside or len(set(proposal.parents or ())) > 1


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("settings", [{}, {"num_blocks": 10}, {"coupled": "all"}])
def test_trees_leave_greedy_and_seeded_output_as_it_is(params: SamplingParams, settings: dict[str, Any]) -> None:
    plain = run(toy_engine(TARGET, None, vocab_size=VOCAB), PROMPTS, params)
    outputs = run(toy_engine(TARGET, tree_drafter(OTHER, 3, **settings), vocab_size=VOCAB, k=6), PROMPTS, params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert sum(o.metrics.speculative_decoding.num_accepted_draft_tokens for o in outputs) > 0


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
def test_the_accepted_path_stays_in_the_drafts_cache(params: SamplingParams) -> None:
    """Each proposal's first pass computes the token that was never fed, and at most one draft beside it."""
    drafter = tree_drafter(TARGET, 2)
    fed: list[int] = []
    grow = drafter._passes.grow

    def counting(drafts: Any, missing: Any) -> None:
        fed.extend(map(len, missing))
        grow(drafts, missing)

    drafter._passes.grow = counting  # type: ignore[method-assign]
    (output,) = run(toy_engine(TARGET, drafter, vocab_size=VOCAB, k=6), [[1, 2, 3]], params)
    stats = output.metrics.speculative_decoding
    assert stats.num_accepted_draft_tokens > stats.num_spec_steps / 2
    assert max(fed[1:]) <= 2
    assert max(stats.per_step_accepted) >= 2
    assert sum(stats.accepted_per_position) == stats.num_accepted_draft_tokens


def test_settings_that_do_not_go_with_trees_are_named() -> None:
    assert SpeculativeConfig(model="draft", tree_width=2).tree_width == 2
    with pytest.raises(ConfigError, match="tree_width=2 needs method='draft_model', not method='ngram'"):
        SpeculativeConfig(method="ngram", tree_width=2)
    with pytest.raises(ConfigError, match="tree_width=9"):
        SpeculativeConfig(model="draft", tree_width=9)
