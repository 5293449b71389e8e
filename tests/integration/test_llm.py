"""The offline API over SmolLM2: shapes of what goes in and what comes out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import LLM, ConfigError, InvalidRequestError, SamplingParams

pytestmark = pytest.mark.model
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(str(smollm2_path), kv_cache_memory="64MiB", max_model_len=256)


@pytest.fixture(autouse=True)
def everything_comes_back(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.engine.has_requests
    assert llm.engine.runner.kv.num_free_blocks == llm.engine.runner.kv.num_blocks
    assert not llm.engine._requests
    assert not llm.engine._requests


def test_text_token_ids_and_lists_of_both(llm: LLM) -> None:
    text = "The capital of France is"
    ids = llm.tokenizer.encode(text)
    both: list[str | list[int]] = [text, ids]
    answers = [llm.generate(text, GREEDY), llm.generate(ids, GREEDY), llm.generate(both, GREEDY)]
    assert [len(outputs) for outputs in answers] == [1, 1, 2]
    assert {output.outputs[0].text for outputs in answers for output in outputs} == {answers[0][0].outputs[0].text}
    first = answers[0][0]
    assert "Paris" in first.outputs[0].text
    assert first.prompt == text
    assert first.prompt_token_ids == tuple(ids)
    assert llm.tokenizer.decode(first.outputs[0].token_ids) == first.outputs[0].text
    assert "".join(first.outputs[0].token_texts) == first.outputs[0].text
    assert len(first.outputs[0].sources) == len(first.outputs[0].token_ids)


def test_stream_equals_generate(llm: LLM) -> None:
    prompt = "1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2,"
    pieces = list(llm.stream(prompt, GREEDY))
    (output,) = llm.generate(prompt, GREEDY)
    assert "".join(piece.text for piece in pieces) == output.outputs[0].text
    assert tuple(t for piece in pieces for t in piece.token_ids) == output.outputs[0].token_ids
    assert tuple(s for piece in pieces for s in piece.sources) == output.outputs[0].sources
    assert any(len(piece.token_ids) > 1 for piece in pieces), "drafts must have been accepted here"
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"
    assert [piece.output for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    last = pieces[-1].output
    assert last is not None
    assert (last.prompt, last.prompt_token_ids, last.outputs) == (prompt, output.prompt_token_ids, output.outputs)
    assert last.metrics.time_to_first_token is not None
    assert last.metrics.speculative_decoding.num_accepted_draft_tokens > 0


def test_a_stream_that_is_closed_frees_its_request(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", SamplingParams(temperature=0, max_tokens=100))
    next(stream)
    stream.close()


def test_a_stream_that_is_never_read_costs_nothing(llm: LLM) -> None:
    llm.stream("Once upon a time", GREEDY)


def test_two_streams_read_in_turn_and_a_call_between_lose_nothing(llm: LLM) -> None:
    prompts = ["The capital of France is", "1, 2, 3, 4, 5, 1, 2, 3,"]
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    streams = [llm.stream(prompt, GREEDY) for prompt in prompts]
    got: list[list[int]] = [list(next(stream).token_ids) for stream in streams]
    assert llm.generate(prompts[0], GREEDY)[0].outputs[0].token_ids == expected[0]
    for tokens, stream in zip(got, streams, strict=True):
        tokens.extend(token for piece in stream for token in piece.token_ids)
    assert [tuple(tokens) for tokens in got] == expected


def test_a_prompt_that_does_not_fit_is_refused_before_the_stream_is_read(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.stream("", GREEDY)
    with pytest.raises(InvalidRequestError, match="a stream has one prompt, but 2 were given"):
        llm.stream(["one", "two"], GREEDY)  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match="decode it first"):
        llm.stream(b"bytes", GREEDY)


def test_six_threads_get_what_each_would_get_alone(llm: LLM) -> None:
    prompts = [
        "The capital of France is",
        "1, 2, 3, 1, 2, 3,",
        "Once upon a time",
        "def f(x):",
        "Dear Sir,",
        "A B A B A",
    ]
    params = [GREEDY, SamplingParams(temperature=0.9, seed=4, max_tokens=12)] * 3
    alone = [llm.generate(prompt, each)[0].outputs[0].token_ids for prompt, each in zip(prompts, params, strict=True)]
    got: dict[int, list[Any]] = {}

    def work(place: int) -> None:
        prompt, each = prompts[place], params[place]
        streamed = tuple(token for piece in llm.stream(prompt, each) for token in piece.token_ids)
        got[place] = [llm.generate(prompt, each)[0].outputs[0].token_ids, streamed]

    threads = [threading.Thread(target=work, args=[place], daemon=True) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert got == {place: [tokens, tokens] for place, tokens in enumerate(alone)}


def test_arrays_generators_dicts_and_parameters_as_dicts(llm: LLM) -> None:
    text = "The capital of France is"
    ids = llm.tokenizer.encode(text)
    greedy = {"temperature": 0, "max_tokens": 12}
    expected = llm.generate(text, GREEDY)[0].outputs[0].token_ids
    forms: list[Any] = [
        np.array(ids),
        np.array([ids, ids]),
        (text for _ in range(2)),
        iter(ids),
        [(token for token in ids), {"prompt": text}, {"prompt_token_ids": np.array(ids)}],
        {"prompt": "another name for it", "prompt_token_ids": ids},
    ]
    outputs = [output for form in forms for output in llm.generate(form, greedy)]
    assert [output.outputs[0].token_ids for output in outputs] == [expected] * 10
    assert {output.prompt_token_ids for output in outputs} == {tuple(ids)}
    assert outputs[-1].prompt == "another name for it"
    assert list(llm.stream({"prompt": text}, greedy))[-1].output.outputs[0].token_ids == expected  # type: ignore[union-attr]
    assert llm.generate(iter([])) == []


def test_a_bad_prompt_among_several_is_named(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]: the prompt is empty"):
        llm.generate(["fine", ""], GREEDY)
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]: prompt token 0 is 999999, but ids go from 0 to"):
        llm.generate([[1], [999999]], GREEDY)
    with pytest.raises(InvalidRequestError, match="^messages is a dict; give a list of messages"):
        llm.chat({"role": "user", "content": "Hello!"})  # type: ignore[arg-type]


def test_more_tokens_than_the_context_holds_end_with_the_context(llm: LLM) -> None:
    (output,) = llm.generate([[1] * 200], {"temperature": 0, "max_tokens": 999_999, "ignore_eos": True})
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 256 - 200


def test_chat_one_and_many(llm: LLM) -> None:
    one = [{"role": "user", "content": "What is the capital of France?"}]
    (single,) = llm.chat(one, GREEDY)
    many = llm.chat([one, one], GREEDY)
    assert [output.outputs[0].text for output in many] == [single.outputs[0].text] * 2


def test_parameters_for_each_prompt(llm: LLM) -> None:
    outputs = llm.generate(["A", "B"], [GREEDY, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)])
    assert len(outputs[1].outputs[0].token_ids) == 3
    with pytest.raises(InvalidRequestError, match="1 SamplingParams for 2 prompts"):
        llm.generate(["A", "B"], [GREEDY])


@pytest.mark.parametrize(
    ("prompts", "words"),
    [([""], "empty"), (["fine", ""], "empty"), (["x", 5], "mix"), ([[1, 2], []], "empty"), (["a " * 300], "256")],
)
def test_one_bad_prompt_refuses_the_call_and_keeps_nothing(llm: LLM, prompts: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(prompts, GREEDY)


def test_several_answers_to_one_prompt(llm: LLM) -> None:
    prompt = "Once upon a time"
    params = SamplingParams(seed=3, n=3, max_tokens=10, ignore_eos=True, logprobs=1, prompt_logprobs=0)
    (output, single) = llm.generate([prompt, prompt], [params, params.model_copy(update={"n": 1})])
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    answers = [completion.token_ids for completion in output.outputs]
    assert answers[0] == single.outputs[0].token_ids, "the first answer is that of n = 1"
    assert len(set(answers)) == 3
    assert output.finished
    assert output.prompt == prompt
    assert output.prompt_logprobs == single.prompt_logprobs
    assert all(len(completion.logprobs or ()) == 10 for completion in output.outputs)
    assert output.metrics.speculative_decoding.num_steps >= single.metrics.speculative_decoding.num_steps
    assert [c.token_ids for c in llm.generate(prompt, params)[0].outputs] == answers
    unseeded = llm.generate(prompt, SamplingParams(n=2, max_tokens=10, ignore_eos=True))[0]
    assert len({completion.token_ids for completion in unseeded.outputs}) == 2
    with pytest.raises(InvalidRequestError, match="n=2, but a stream has one answer"):
        llm.stream(prompt, SamplingParams(n=2))


def test_bad_words_and_a_broken_processor(llm: LLM) -> None:
    prompt = "The capital of France is"
    plain, without = llm.generate([prompt] * 2, [GREEDY, GREEDY.model_copy(update={"bad_words": ("Paris",)})])
    assert "Paris" in plain.outputs[0].text
    assert "Paris" not in without.outputs[0].text

    def broken(token_ids: Any, row: Any) -> Any:
        raise RuntimeError("out of ideas")

    failed, fine = llm.generate([prompt] * 2, [GREEDY.model_copy(update={"logits_processors": (broken,)}), GREEDY])
    assert "'broken' failed: RuntimeError: out of ideas" in str(failed.error)
    assert fine.outputs[0].token_ids == plain.outputs[0].token_ids


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_a_cache_too_small_for_what_was_asked_is_refused(smollm2_path: Path) -> None:
    with pytest.raises(ConfigError, match="kv_cache_memory"):
        LLM(str(smollm2_path), kv_cache_memory=4 << 20, max_model_len=2048)
    with pytest.raises(ConfigError, match="raise kv_cache_memory"):
        LLM(str(smollm2_path), kv_cache_memory=1000)
    with pytest.raises(ConfigError, match="unknown engine setting 'blok_size'"):
        LLM(str(smollm2_path), blok_size=3)
