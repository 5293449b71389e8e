"""Every kind of drafter over one toy target: as settings name them, and in the shapes that only code can ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider import native
from outrider.config import SpeculativeConfig
from outrider.drafters.base import Drafter, DraftRequest
from outrider.drafters.build import build_drafters
from outrider.drafters.cross_vocab import CrossVocabDrafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.models.vocabulary import Vocabulary
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.verification.base import Proposal
from tests.toy import ToyModel, random_table
from tests.unit.engine.helpers import Composite, ScriptedDrafter, greedy_continuation
from tests.unit.models.other_vocabularies import spelled

VOCAB = 9
DISTRIBUTION = random_table(VOCAB, seed=1, order=3, sharpness=2.0)
OTHER = random_table(VOCAB, seed=2, order=2, sharpness=2.0)
PROMPTS = [[1, 2], [3] * 7, [0, 1, 2, 0, 1, 2, 0]]
LETTERS = "abcdefghi"
"""The texts of the tokens, as the engine's stream has them."""
ORDER = [4, 2, 7, 0, 8, 1, 6, 3, 5]
"""Token i of the draft with another vocabulary is token ``ORDER[i]``."""


def blend(context: tuple[int, ...]) -> NDArray[np.float64]:
    return np.asarray(0.6 * DISTRIBUTION(context) + 0.4 * OTHER(context))


def draft_model(**settings: Any) -> Drafter:
    runner = ModelRunner(ToyModel(VOCAB, blend), num_blocks=64, block_size=4)
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64, **settings)


def trimmed(**settings: Any) -> Drafter:
    kept = [0, 2, 3, 5]

    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        return np.asarray(blend(context)[kept] / blend(context)[kept].sum())

    runner = ModelRunner(ToyModel(len(kept), distribution), num_blocks=64, block_size=4)
    return DraftModelDrafter(runner, target_vocab_size=VOCAB, max_num_batched_tokens=64, token_ids=kept, **settings)


def cross_vocab(**settings: Any) -> Drafter:
    """A draft with the letters in another order, and a pair of them."""
    own = Vocabulary(spelled([*(LETTERS[place] for place in ORDER), "ab"], merges=[("a", "b")]))

    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        heard = tuple(each for token in context for each in ([ORDER[token]] if token < VOCAB else [0, 1]))
        probs = 0.95 * blend(heard)[ORDER]
        return np.asarray([*probs, 1.0 - probs.sum()])

    return CrossVocabDrafter(
        ModelRunner(ToyModel(VOCAB + 1, distribution), num_blocks=64, block_size=4),
        own=own,
        target=Vocabulary(spelled(list(LETTERS), merges=[])),
        target_vocab_size=VOCAB,
        max_num_batched_tokens=64,
        **settings,
    )


@dataclass
class Echo:
    """A drafter of a user's own: the latest tokens once more."""

    name: str = "echo"

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(tuple(entry.request.token_ids[-entry.max_tokens :])) for entry in batch]

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None: ...

    def forget(self, request_id: str) -> None: ...


def built(method: Any, make_model: Callable[[], Drafter] | None = None) -> Composite:
    """As a user's settings make it."""
    config = SpeculativeConfig(method=method, model="draft" if make_model else None, num_speculative_tokens=4)
    drafters = build_drafters(config, make_model() if make_model else None)
    return Composite(drafters.retrieval, drafters.model)


METHODS: dict[str, Callable[[], Drafter | Composite]] = {
    "ngram": partial(built, "ngram"),
    "suffix": partial(built, "suffix"),
    "prediction": partial(built, "prediction"),
    "draft_model": lambda: built("draft_model", draft_model),
    "cross_vocab": lambda: built("cross_vocab", cross_vocab),
    "composite": lambda: built("composite", draft_model),
    "plug-in": lambda: built(Echo()),
}
"""Every method that settings may name."""
DRAFTERS: dict[str, Callable[[], Drafter | Composite]] = {
    **{f"method {name}": make for name, make in METHODS.items() if name != "suffix" or native.available()},
    "prediction": PredictionDrafter,
    "cross vocabulary, tli": lambda: cross_vocab(algorithm="tli"),
    "cross vocabulary, slem": lambda: cross_vocab(algorithm="slem"),
    "ngram": lambda: NGramDrafter(min_match=1, max_match=3),
    "draft model": draft_model,
    "trimmed draft model": trimmed,
    "tree": lambda: draft_model(tree_width=2),
    "trimmed coupled tree": lambda: trimmed(tree_width=3, coupled="all"),
    "coupled draft model": lambda: draft_model(coupled="all"),
    **({"suffix": SuffixDrafter} if native.available() else {}),
    "composite": lambda: Composite([NGramDrafter(min_match=1, max_match=3)], draft_model()),
    "forbidden tokens": lambda: ScriptedDrafter(lambda request, k: [8, 1, 8, 0][:k]),
    "the target's unedited choice": lambda: ScriptedDrafter(
        lambda r, k: greedy_continuation(DISTRIBUTION, r.token_ids, k)
    ),
}

PREDICTION = (
    3,
    1,
    *greedy_continuation(DISTRIBUTION, PROMPTS[0], 6),
    0,
    2,
    *greedy_continuation(DISTRIBUTION, PROMPTS[1], 6),
)
"""What requests expect as their answers, for the drafter that drafts from it: right in parts."""
