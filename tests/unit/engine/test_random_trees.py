"""Trees of any shape from a drafter that knows half of the answer: nothing but the number of passes may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outrider.drafters.base import Drafter, DraftRequest, Proposal
from outrider.request import Request
from outrider.sampling_params import SamplingParams
from outrider.verification.base import path_to
from tests.toy import Distribution, random_table
from tests.unit.engine.helpers import run, toy_engine

VOCAB = 7
PROMPTS = [[1, 2, 3], [2], [3, 3, 1, 0, 5], [4, 1]]


class WildDrafter:
    """Point-mass trees of random shape; seven in ten nodes are what the target would most likely say there."""

    name = "wild"

    def __init__(self, distribution: Distribution, seed: int) -> None:
        self._probs = distribution
        self._rng = np.random.default_rng(seed)
        self.num_accepted = 0
        self.num_branching = 0

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._tree(entry) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        self.num_accepted += num_accepted

    def forget(self, request_id: str) -> None: ...

    def _tree(self, entry: DraftRequest) -> Proposal:
        nodes: dict[tuple[int, int], None] = {}
        for _ in range(int(self._rng.integers(1, entry.max_tokens + 1))):
            parents, token_ids = [parent for parent, _ in nodes], [token_id for _, token_id in nodes]
            parent = int(self._rng.integers(-1, len(nodes)))
            path = [token_ids[node] for node in path_to(parents, parent)]
            likely = int(np.argmax(self._probs((*entry.request.token_ids, *path))))
            token_id = likely if self._rng.random() < 0.7 else int(self._rng.integers(VOCAB))
            nodes[parent, token_id] = None  # a sibling that is there already is not added again
        parents = [parent for parent, _ in nodes]
        self.num_branching += len(set(parents)) < len(parents)
        return Proposal(tuple(token_id for _, token_id in nodes), parents=tuple(parents))


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_change_no_token_and_no_logprob(seed: int) -> None:
    distribution = random_table(VOCAB, seed=seed, order=2)
    params = [
        SamplingParams(temperature=0.0, max_tokens=20),
        SamplingParams(temperature=1.0, seed=seed, max_tokens=20, logprobs=2),
        SamplingParams(
            temperature=0.7, seed=seed, max_tokens=17, frequency_penalty=0.9, repetition_penalty=1.3, logprobs=1,
            min_tokens=4,
        ),
        SamplingParams(temperature=0.0, max_tokens=20, bad_token_ids=((1,),), logprobs=3),
    ]  # fmt: skip

    def answers(drafter: Drafter | None, **settings: Any) -> list[Any]:
        engine = toy_engine(distribution, drafter, vocab_size=VOCAB, k=7, end_token_ids=frozenset({6}), **settings)
        outputs = run(engine, PROMPTS, params)
        assert all(output.error is None for output in outputs)
        return [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].finish_reason) for o in outputs]

    plain, drafter = answers(None), WildDrafter(distribution, seed)
    assert answers(drafter) == plain
    assert answers(drafter, num_blocks=14, block_size=3, max_model_len=40) == plain, "with preemption"
    assert answers(drafter, block_size=1, max_num_batched_tokens=9) == plain, "with drafts cut for want of room"
    assert drafter.num_accepted > 0
    assert drafter.num_branching > 0
