"""openai-python, unchanged, against the server with a real model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.serving import RunningServer

pytestmark = pytest.mark.model

USER: list[Any] = [{"role": "user", "content": "Repeat: one two three four five six seven. one two three"}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "additionalProperties": False}}},
]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0) as client:
        yield client


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smol", "also-smol"]
    assert client.models.retrieve("also-smol").owned_by == "outrider"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_a_chat_streamed_is_the_chat_not_streamed(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": USER, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert whole.choices[0].message.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert [c.choices[0].delta.role for c in chunks[:-1]] == ["assistant"] + [None] * (len(chunks) - 2)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    # The first answer has left its prompt in the prefix cache.
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert (chunks[-1].usage.prompt_tokens_details.cached_tokens or 0) > 0
    assert whole.usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1
    # Steps that accepted drafts brought several tokens: fewer chunks than tokens.
    assert whole.model_extra is not None
    stats = whole.model_extra["metrics"]["speculative_decoding"]
    assert stats["num_accepted_draft_tokens"] == 24 - (len(chunks) - 1)
    assert chunks[-1].model_extra is not None
    streamed = chunks[-1].model_extra["metrics"]["speculative_decoding"]
    assert {key: streamed[key] for key in stats if not key.endswith("_ms")} == {
        key: value for key, value in stats.items() if not key.endswith("_ms")
    }


def test_speculation_off_gives_the_same_answer(client: OpenAI) -> None:
    def answer(**extra: Any) -> tuple[str | None, int]:
        whole = client.chat.completions.create(
            model="smol", messages=USER, seed=3, temperature=0.8, max_tokens=24, extra_body=extra
        )
        assert whole.model_extra is not None
        drafted: int = whole.model_extra["metrics"]["speculative_decoding"]["num_draft_tokens"]
        return whole.choices[0].message.content, drafted

    text, drafted = answer()
    assert drafted > 0
    assert answer(speculative_config="off") == (text, 0)
    assert answer(speculative_config={"method": "off"}) == (text, 0)
    assert answer(speculative_config={"num_speculative_tokens": 0}) == (text, 0)
    assert answer(speculative_config={"method": "ngram", "num_speculative_tokens": 1})[0] == text


def test_several_answers_with_seeds(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": USER, "seed": 7, "temperature": 1.2, "max_tokens": 8}
    one = client.chat.completions.create(**asked)
    three = client.chat.completions.create(**asked, n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.choices[0].message.content == one.choices[0].message.content
    assert len({choice.message.content for choice in three.choices}) > 1
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in three.choices]


def test_structured_output_is_parsed(client: OpenAI) -> None:
    class City(BaseModel):
        name: Literal["Paris", "Rome"]
        large: bool

    done = client.chat.completions.parse(
        model="smol", messages=USER, response_format=City, temperature=0, max_tokens=100
    )
    assert isinstance(done.choices[0].message.parsed, City)
    plain = client.chat.completions.create(
        model="smol",
        messages=USER,
        temperature=0,
        max_tokens=60,
        response_format={"type": "json_object"},
        stop="}",
        logit_bias={"34": -1},
    )
    assert (plain.choices[0].message.content or "").lstrip().startswith("{")


def _tools(**fields: Any) -> dict[str, Any]:
    return {"model": "smol", "messages": USER, "tools": WEATHER, "temperature": 0, "max_tokens": 120, **fields}


def test_a_tool_that_must_be_called_is_called(client: OpenAI) -> None:
    done = client.chat.completions.create(**_tools(tool_choice="required", parallel_tool_calls=False))
    (call,) = done.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name in ("get_weather", "now")
    json.loads(call.function.arguments)
    assert done.choices[0].finish_reason == "tool_calls"
    assert done.choices[0].message.content is None


def test_a_named_tool_streams_as_it_comes_whole(client: OpenAI) -> None:
    asked = _tools(tool_choice={"type": "function", "function": {"name": "get_weather"}}, parallel_tool_calls=False)
    (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls or []
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Rome")
    assert isinstance(arguments["days"], int)
    chunks: list[ChatCompletionChunk] = list(client.chat.completions.create(**asked, stream=True))
    deltas = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].id
    assert deltas[0].type == "function"
    names = [each.function.name for each in deltas if each.function and each.function.name]
    assert names == ["get_weather"]
    assert "".join(each.function.arguments or "" for each in deltas if each.function) == call.function.arguments
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_conversation_goes_on_after_a_call(client: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages: list[Any] = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
    ]
    done = client.chat.completions.create(**{**_tools(tool_choice="none"), "messages": messages, "max_tokens": 4})
    assert done.choices[0].message.content
    assert done.choices[0].message.tool_calls is None


def test_logprobs_say_that_greedy_took_the_most_probable(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": USER, "temperature": 0, "max_tokens": 12}
    done = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 12
    for place in logprobs.content:
        assert place.logprob == max(top.logprob for top in place.top_logprobs)
        assert len(place.top_logprobs) == 3
    text = b"".join(bytes(place.bytes or []) for place in logprobs.content).decode()
    assert text == done.choices[0].message.content
    streamed = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3, stream=True)
    pieces = [each for chunk in streamed for each in (chunk.choices[0].logprobs or logprobs).content or []]
    assert pieces == logprobs.content


def test_completions_with_echo_and_logprobs(client: OpenAI) -> None:
    prompt = "The capital of France is"
    done = client.completions.create(
        model="smol", prompt=prompt, max_tokens=3, temperature=0, logprobs=1, echo=True
    ).choices[0]
    assert done.text.startswith(prompt)
    logprobs = done.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert "".join(logprobs.tokens) == done.text
    assert logprobs.token_logprobs[0] is None
    for chosen, top in list(zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True))[-3:]:
        assert chosen == max(top.values())
    for offset, token in zip(logprobs.text_offset or [], logprobs.tokens, strict=True):
        assert done.text[offset:].startswith(token)
    scored = client.completions.create(
        model="smol", prompt=[[504, 3575], [504, 3575, 282]], max_tokens=0, logprobs=1, echo=True, temperature=0
    )
    assert [choice.text for choice in scored.choices] == ["The capital", "The capital of"]
    for choice, length in zip(scored.choices, (2, 3), strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == logprobs.token_logprobs[:length]


def test_a_prediction_is_counted(client: OpenAI) -> None:
    first = client.chat.completions.create(model="smol", messages=USER, temperature=0, max_tokens=24)
    expected = first.choices[0].message.content or ""
    done = client.chat.completions.create(
        model="smol", messages=USER, temperature=0, max_tokens=24, prediction={"type": "content", "content": expected}
    )
    assert done.choices[0].message.content == expected
    assert done.usage is not None
    details = done.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) >= 12
    assert details.rejected_prediction_tokens is not None
    assert first.usage is not None
    assert first.usage.completion_tokens_details is None


def test_errors_are_the_clients_own_kinds(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="smol", messages=USER, temperature=-1)
    assert bad.value.param == "temperature"
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="smol", prompt=[5] * 9000)
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "prompt"


def test_a_client_retries_while_the_server_is_away(server: RunningServer, client: OpenAI) -> None:
    server.serving.draining = True
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="smol", prompt="a", max_tokens=1)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "1"
    back = threading.Timer(0.2, lambda: setattr(server.serving, "draining", False))
    back.start()
    done = client.with_options(max_retries=3).completions.create(model="smol", prompt="a", max_tokens=1)
    back.join()
    assert done.usage is not None
    assert done.usage.completion_tokens == 1
