"""A draft model with another vocabulary, over toy models: what it reads, what it proposes, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.config import SpeculativeConfig
from outrider.drafters.cross_vocab import CrossVocabDrafter
from outrider.errors import ConfigError, VocabularyMismatchError
from outrider.models.retokenizer import Retokenizer
from outrider.models.tokenizer import Tokenizer
from outrider.models.vocabulary import Vocabulary
from outrider.outputs import RequestOutput, SpeculationStatus
from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from tests.toy import Distribution, ToyModel, random_table, scripted
from tests.unit.engine.helpers import GREEDY, Composite, KSchedule, drain, recorded, run, toy_engine
from tests.unit.models.other_vocabularies import TEXTS, byte_level, sentencepiece, spelled

LETTERS = "abcdefghi"
SEEDED = SamplingParams(seed=4, max_tokens=24)
SAMPLED = SamplingParams(max_tokens=24)
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8], [4] * 11, [0, 1]]
ALGORITHMS = ["tli", "slem"]


def drafter_over(
    distribution: Distribution,
    own: Tokenizer,
    target: Tokenizer,
    *,
    num_blocks: int = 128,
    max_model_len: int = 4096,
    **settings: Any,
) -> CrossVocabDrafter:
    size = len(own.tokens) if settings.get("token_ids") is None else len(settings["token_ids"])
    runner = ModelRunner(ToyModel(size, distribution, max_model_len=max_model_len), num_blocks=num_blocks, block_size=4)
    settings.setdefault("max_num_batched_tokens", 512)
    return CrossVocabDrafter(
        runner, own=Vocabulary(own), target=Vocabulary(target), target_vocab_size=len(target.tokens), **settings
    )


def ids(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


ORDER = [4, 2, 7, 0, 8, 1, 6, 3, 5]
"""Draft token i is the target's letter ``ORDER[i]``."""
TARGET = random_table(9, seed=3, order=64, sharpness=2.0)
TARGET_LETTERS = spelled(list(LETTERS))
DRAFT_LETTERS = spelled([LETTERS[place] for place in ORDER])


def permuted(context: tuple[int, ...]) -> NDArray[np.float64]:
    return np.asarray(TARGET(tuple(ORDER[token] for token in context))[ORDER])


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
def test_the_targets_own_distribution_under_other_ids_is_always_accepted(params: SamplingParams) -> None:
    """Nothing is lost between the vocabularies, and the draft's cache holds what it should after any history."""
    params = SamplingParams(**{**params.model_dump(), "max_tokens": 200})
    k = KSchedule(lambda request: (4, 4, 4, 0, 0, 1, 4, 2, 0)[request.num_output_tokens // 7 % 9])
    drafter = drafter_over(permuted, DRAFT_LETTERS, TARGET_LETTERS, algorithm="tli")
    engine = toy_engine(TARGET, drafter, vocab_size=9, k=k, max_model_len=300, num_blocks=128)
    (output,) = run(engine, [[1, 2, 3]], params)
    stats = output.metrics.speculative_decoding
    assert len(output.outputs[0].token_ids) == 200
    assert 4 in stats.per_step_drafted
    assert stats.draft_acceptance_rate == 1.0
    drafter.check_integrity()


def speller(words: Sequence[str], distribution: Distribution, target: Sequence[str]) -> Distribution:
    """A draft that says how the greedy target goes on, in the longest of its ``words`` that fits."""

    @cache
    def continuation(text: str) -> str:
        tokens = [target.index(letter) for letter in text]
        for _ in range(3):
            tokens.append(int(np.argmax(distribution(tuple(tokens)))))
        return "".join(target[token] for token in tokens)[len(text) :]

    def of_context(context: tuple[int, ...]) -> NDArray[np.float64]:
        ahead = continuation("".join(words[token] for token in context))
        best = max((word for word in words if ahead.startswith(word)), key=len)
        probs = np.full(len(words), 0.01)
        probs[words.index(best)] = 1.0
        return np.asarray(probs / probs.sum())

    return of_context


@pytest.mark.parametrize("algorithm", ["auto", "slem"])
def test_a_draft_that_says_the_targets_text_in_longer_tokens_is_always_accepted(algorithm: Any) -> None:
    pairs = [a + b for a in LETTERS for b in "bdfh"]
    merges = [(pair[0], pair[1]) for pair in pairs]
    words = [*LETTERS[::-1], *pairs]
    distribution = speller(words, TARGET, LETTERS)
    drafter = drafter_over(distribution, spelled(words, merges=merges), TARGET_LETTERS, algorithm=algorithm)
    seen = recorded(drafter)
    k = KSchedule(lambda request: (4, 4, 1, 0, 3)[request.num_output_tokens // 7 % 5])
    engine = toy_engine(TARGET, drafter, vocab_size=9, k=k, max_model_len=300)
    (output,) = run(engine, [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=120))
    (plain,) = run(
        toy_engine(TARGET, None, vocab_size=9, max_model_len=300),
        [[1, 2, 3]],
        SamplingParams(temperature=0, max_tokens=120),
    )
    assert ids([output]) == ids([plain])
    assert output.metrics.speculative_decoding.draft_acceptance_rate == 1.0
    assert max(len(proposal) for _, proposal in seen) == 4
    assert all(proposal.probs is None for _, proposal in seen)


def test_without_shared_tokens_text_still_works_and_shared_tokens_are_refused() -> None:
    target = spelled(["aab", "bba", "abb", "baa"])
    own = spelled(["ab", "ba"])
    with pytest.raises(VocabularyMismatchError, match=r"share 0 of the draft's 2; use 'slem' or 'auto'"):
        drafter_over(random_table(2, seed=1), own, target, algorithm="tli")
    assert drafter_over(random_table(2, seed=1), own, target, algorithm="auto").shared.num_ordinary == 0


PAIRS = ["aa", "ab", "ba", "bb"]
ONLY_PAIRS = spelled([*PAIRS, "a", "b"], merges=[(pair[0], pair[1]) for pair in PAIRS])
"""With a model of four rows: single letters are for the tokenizer's inner use."""


def letter_by_letter(distribution: Distribution) -> Distribution:
    """A draft of tokens "b" and "a" that says what a greedy target of ``PAIRS`` says."""

    def of_context(context: tuple[int, ...]) -> NDArray[np.float64]:
        text = "".join("ba"[token] for token in context)
        committed = tuple(PAIRS.index(text[place : place + 2]) for place in range(0, len(text) - 1, 2))
        letter = PAIRS[int(np.argmax(distribution(committed)))][len(text) % 2]
        return np.array([0.99, 0.01] if letter == "b" else [0.01, 0.99])

    return of_context


@pytest.mark.parametrize("params", [GREEDY, SEEDED])
def test_text_drafts_between_vocabularies_that_share_no_token(params: SamplingParams) -> None:
    distribution = random_table(4, seed=2, order=64, sharpness=3.0)
    runner = ModelRunner(ToyModel(2, letter_by_letter(distribution)), num_blocks=64, block_size=4)
    drafter = CrossVocabDrafter(
        runner,
        own=Vocabulary(spelled(["b", "a"])),
        target=Vocabulary(ONLY_PAIRS, 4),
        target_vocab_size=4,
        max_num_batched_tokens=64,
    )
    assert drafter.shared.num_ordinary == 0
    drafted = run(toy_engine(distribution, drafter, vocab_size=4, k=6), [[3], [3, 1, 2]], params)
    assert ids(drafted) == ids(run(toy_engine(distribution, None, vocab_size=4), [[3], [3, 1, 2]], params))
    for output in drafted:
        assert output.metrics.speculation == SpeculationStatus("cross_vocab")
        assert output.metrics.speculative_decoding.num_accepted_draft_tokens > 5
        assert output.metrics.speculative_decoding.draft_acceptance_rate == 1.0 or not params.greedy


MERGED = spelled(
    ["b", "ba", "a", "c", "ca", "hi", "d", "e", "g", "f", "i", "h"], merges=[("b", "a"), ("c", "a"), ("h", "i")]
)
OTHER = random_table(12, seed=4, order=64, sharpness=2.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 3}, {"num_blocks": 6}, {"max_model_len": 12}, {"coupled": "all"}]
)
@pytest.mark.parametrize(
    "params", [GREEDY, SEEDED, SamplingParams(seed=9, temperature=0.6, top_p=0.9, frequency_penalty=0.7, max_tokens=24)]
)
def test_any_draft_leaves_greedy_and_seeded_output_as_it_is(
    algorithm: Any, settings: dict[str, Any], params: SamplingParams
) -> None:
    plain = run(toy_engine(TARGET, None, vocab_size=9), PROMPTS, params)
    drafter = drafter_over(OTHER, MERGED, TARGET_LETTERS, algorithm=algorithm, **settings)
    drafted = run(toy_engine(TARGET, drafter, vocab_size=9, k=3), PROMPTS, params)
    assert ids(drafted) == ids(plain)
    assert sum(output.metrics.speculative_decoding.num_draft_tokens for output in drafted) > 0
    assert all(output.metrics.speculation == SpeculationStatus("cross_vocab") for output in drafted)
    assert drafter._passes._runner.kv.num_free_blocks == drafter._passes._runner.kv.num_blocks


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("params", [GREEDY, SEEDED])
def test_preemption_changes_nothing(algorithm: Any, params: SamplingParams) -> None:
    plain = run(toy_engine(TARGET, None, vocab_size=9), PROMPTS, params)
    drafter = drafter_over(OTHER, MERGED, TARGET_LETTERS, algorithm=algorithm)
    engine = toy_engine(TARGET, drafter, vocab_size=9, k=3, num_blocks=10)
    requests = [engine.add_request(str(i), prompt, params) for i, prompt in enumerate(PROMPTS)]
    drain(engine)
    assert sum(request.num_preemptions for request in requests) > 0
    assert [tuple(request.output_token_ids) for request in requests] == ids(plain)


def test_drafting_ends_before_a_token_that_the_target_does_not_have() -> None:
    """The distribution of what is drawn is the draft's over shared tokens; where it prefers another one nothing is
    drawn."""

    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        probs = np.full(12, 0.01)
        probs[5 if len(context) % 3 == 0 else 0] = 1.0  # "hi", which the target has not, or "b"
        return np.asarray(probs / probs.sum())

    for params in (GREEDY, SAMPLED, SEEDED):
        drafter = drafter_over(distribution, MERGED, TARGET_LETTERS, algorithm="tli")
        seen = recorded(drafter)
        run(toy_engine(TARGET, drafter, vocab_size=9, k=4), [[3, 4]], params)
        assert all(len(proposal) <= 2 for _, proposal in seen)
        assert any(len(proposal) == 2 for _, proposal in seen)
        assert (seen[0][1].probs is not None) == (params is SAMPLED)


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_trimmed_draft_proposes_its_own_tokens_only(algorithm: Any, params: SamplingParams) -> None:
    kept = [0, 2, 3, 6]

    def trimmed(context: tuple[int, ...]) -> NDArray[np.float64]:
        probs = OTHER(context)[kept]
        return np.asarray(probs / probs.sum())

    # A toy model has as many ids as rows; the draft's own ids go further, which only a distribution sees.
    drafter = drafter_over(trimmed, MERGED, TARGET_LETTERS, algorithm=algorithm, token_ids=kept)
    seen = recorded(drafter)
    run(toy_engine(TARGET, drafter, vocab_size=9), PROMPTS, params)
    assert {token for _, proposal in seen for token in proposal.token_ids} == {0, 1, 2, 3}


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "too early"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_requests_that_begin_alike_share_what_the_draft_computed(
    algorithm: Any, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if tokens that change later were shared, nobody writes to what others read."""
    if not settled:
        monkeypatch.setattr(Retokenizer, "num_settled", property(lambda text: len(text._ids)))
    drafter = drafter_over(OTHER, MERGED, TARGET_LETTERS, algorithm=algorithm)
    fed: list[int] = []
    grow = drafter._passes.grow

    def counting(drafts: Any, missing: Any) -> None:
        fed.extend(map(len, missing))
        grow(drafts, missing)

    drafter._passes.grow = counting  # type: ignore[method-assign]
    prompt = [(place * place + place // 7) % 9 for place in range(150)]
    prompts = [prompt, [*prompt, 2, 0, 1], prompt, [*prompt[:140], 2, 2]]
    for _ in range(2):
        fed.clear()
        drafted = run(toy_engine(TARGET, drafter, vocab_size=9, k=3, num_blocks=256), prompts, GREEDY)
        assert ids(drafted) == ids(run(toy_engine(TARGET, None, vocab_size=9, num_blocks=256), prompts, GREEDY))
        assert all(output.metrics.speculation == SpeculationStatus("cross_vocab") for output in drafted)
        drafter.check_integrity()
    assert max(fed) < 100, "what the first round computed need not be computed again"


def test_an_end_is_an_end_and_no_text_is() -> None:
    target = spelled(["a", "<", "x", ">", "<stop>", "b"], end="<stop>")
    own = spelled(["b", "<x>", ">", "x", "<", "a"], end="<x>")
    distribution = random_table(6, seed=5, order=3, sharpness=2.0)
    for algorithm in ("tli", "slem"):
        drafter = drafter_over(distribution, own, target, algorithm=algorithm)
        fed: list[int] = []
        grow = drafter._passes.grow

        def counting(drafts: Any, missing: Any, grow: Callable[..., None] = grow, fed: list[int] = fed) -> None:
            fed.extend(token for tokens in missing for token in tokens)
            grow(drafts, missing)

        drafter._passes.grow = counting  # type: ignore[method-assign]
        (output,) = run(toy_engine(distribution, drafter, vocab_size=6), [[0, 1, 2, 3, 0]], GREEDY)
        assert fed[:5] == [5, 4, 3, 2, 5], "a text spelled like the draft's end is text"
        (plain,) = run(toy_engine(distribution, None, vocab_size=6), [[0, 1, 2, 3, 0]], GREEDY)
        assert ids([output]) == ids([plain])


def test_composite_takes_it_like_any_model() -> None:
    drafter = Composite([], drafter_over(permuted, DRAFT_LETTERS, TARGET_LETTERS, algorithm="tli"))
    (output,) = run(toy_engine(TARGET, drafter, vocab_size=9), [[1, 2, 3]], GREEDY)
    assert output.metrics.speculative_decoding.draft_acceptance_rate == 1.0


def test_a_draft_whose_pass_fails_costs_only_that_request_its_drafts() -> None:
    for fault, algorithm in (("raises", "tli"), ("nan", "tli"), ("nan", "slem")):

        def distribution(context: tuple[int, ...], fault: str = fault) -> NDArray[np.float64]:
            if context[0] != 6:
                return permuted(context)
            if fault == "raises":
                raise RuntimeError("no luck today")
            return np.full(9, np.nan)

        drafter = drafter_over(distribution, DRAFT_LETTERS, TARGET_LETTERS, algorithm=algorithm)
        prompts = [[1], [6], [2, 3]]  # letter 6 is the draft's token 6
        params = SamplingParams(seed=3, max_tokens=24)
        outputs = run(toy_engine(TARGET, drafter, vocab_size=9), prompts, params)
        assert ids(outputs) == ids(run(toy_engine(TARGET, None, vocab_size=9), prompts, params))
        assert str(outputs[1].metrics.speculation).startswith("inactive: drafter 'cross_vocab'")
        assert outputs[0].metrics.speculation == outputs[2].metrics.speculation == SpeculationStatus("cross_vocab")
        drafter.check_integrity()


TRAINED = {
    "byte level by sentencepiece": (byte_level(), sentencepiece()),
    "sentencepiece by byte level": (sentencepiece(), byte_level()),
    "byte level by another with NFC": (byte_level(), byte_level(380, nfc=True, added=("<|endoftext|>", "<|turn|>"))),
    "sentencepiece with prefix by byte level": (sentencepiece(600, prefix=True), byte_level()),
}
WRITTEN = [" the dog 東京は", "<|turn|>e\u0301 👩‍👩‍👧  two  spaces\n\n", TEXTS[1], "don't 123"]


@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
@pytest.mark.parametrize("pair", TRAINED)
@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
def test_real_tokenizers_on_both_sides(pair: str, algorithm: Any, params: SamplingParams) -> None:
    target, own = TRAINED[pair]
    size = len(target.tokens)
    distribution = random_table(size, seed=1, order=2, sharpness=3.0)
    drafter = drafter_over(random_table(len(own.tokens), seed=2, sharpness=3.0), own, target, algorithm=algorithm)
    seen = recorded(drafter)
    prompts = [target.encode(text) for text in WRITTEN]
    outputs = run(toy_engine(distribution, drafter, vocab_size=size), prompts, params)
    assert all(output.metrics.speculation == SpeculationStatus("cross_vocab") for output in outputs), (
        "no proposal broke the contract"
    )
    assert sum(len(proposal) for _, proposal in seen) > 0
    if params is not SAMPLED:
        assert ids(outputs) == ids(run(toy_engine(distribution, None, vocab_size=size), prompts, params))


def test_auto_takes_text_for_greedy_requests_and_where_little_is_shared() -> None:
    letters = drafter_over(permuted, DRAFT_LETTERS, TARGET_LETTERS)
    assert letters.shared.share == 0.0, "single bytes say nothing about how much is shared"
    target, own = TRAINED["byte level by sentencepiece"]
    drafter = drafter_over(random_table(len(own.tokens), seed=2), own, target)
    share = drafter.shared.share

    def by_text(chosen: CrossVocabDrafter, params: SamplingParams) -> bool:
        return chosen._by_text(Request("r", (0,), params, noise_seed=0, max_total_tokens=9))

    assert 0.5 < share < 1.0
    assert by_text(drafter, GREEDY)
    assert not by_text(drafter, SAMPLED)
    assert by_text(letters, SAMPLED)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "cross_vocab"}, "method='cross_vocab' needs 'model'"),
        ({"method": "cross_vocab", "model": "m", "cross_vocab_algorithm": "tly"}, "cross_vocab_algorithm"),
        ({"method": "cross_vocab", "model": "m", "tree_width": 2}, "tree_width=2 needs method='draft_model'"),
    ],
)
def test_settings_that_do_not_fit_are_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(**keys)


def test_the_last_token_of_a_text_that_may_go_on_is_left_out() -> None:
    """The target says a text in its longest tokens, the draft letter by letter: only whole tokens are proposed."""
    target = spelled([*"abcd", "ab", "abc", "cd", "ba"], merges=[("a", "b"), ("ab", "c"), ("c", "d"), ("b", "a")])
    own = spelled([*"dcba"])
    text = "abcdbabcabdcdabacbaabcab" * 6
    script = Vocabulary(target).encode(text)

    def saying(context: tuple[int, ...]) -> NDArray[np.float64]:
        probs = np.full(8, 0.001)
        probs[script[len(context)]] = 1.0
        return np.asarray(probs / probs.sum())

    def spelling(context: tuple[int, ...]) -> NDArray[np.float64]:
        probs = np.full(4, 0.001)
        probs["dcba".index(text[len(context)])] = 1.0
        return np.asarray(probs / probs.sum())

    drafter = drafter_over(spelling, own, target)
    (output,) = run(toy_engine(saying, drafter, vocab_size=8, k=4), [script[:1]], GREEDY)
    assert output.outputs[0].token_ids == tuple(script[1:25])
    assert output.metrics.speculative_decoding.draft_acceptance_rate == 1.0
    assert output.metrics.speculative_decoding.num_accepted_draft_tokens > 8


def test_what_others_read_is_not_written_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Shared too early, a block's last token becomes another one when the text goes on: "h", then "hi"."""
    distribution = scripted(9, [7, 8], prompt_len=3)  # h, i, h, i, ...
    drafter = drafter_over(OTHER, MERGED, TARGET_LETTERS, algorithm="tli")
    # The first request shares its first block, waits while the second one takes it, and then goes on.
    k = KSchedule(lambda request: 3 if request.request_id == "b" or request.num_output_tokens not in (2, 3, 4) else 0)
    engine = toy_engine(distribution, drafter, vocab_size=9, k=k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retokenizer, "num_settled", property(lambda text: len(text._ids)))
        first = engine.add_request("a", [1, 2, 3], GREEDY)
        engine.step()
        assert first.output_token_ids == [7]
        second = engine.add_request("b", [1, 2, 3, 7, 7, 7], GREEDY)
        free = drafter._passes._runner.kv.num_free_blocks
        engine.step()
        assert drafter._passes._runner.kv.num_free_blocks < free
        drain(engine)
    assert first.output_token_ids == [7, 8] * 12
    assert "failed" not in caplog.text
    for name in "ab":
        assert engine.take_output(name).metrics.speculation == SpeculationStatus("cross_vocab")
    assert second.num_output_tokens == 24
    drafter.check_integrity()
