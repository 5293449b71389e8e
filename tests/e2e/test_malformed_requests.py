"""Bad input of every kind gets a 4xx that names the field, and the server goes on as if nothing had been."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import RunningServer, toy_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> tuple[str, Any]:
    return CHAT, {"messages": HI, **fields}


def text(**fields: Any) -> tuple[str, Any]:
    return TEXT, {"prompt": "a", **fields}


def saying(content: Any, role: Any = "user", **more: Any) -> tuple[str, Any]:
    return CHAT, {"messages": [{"role": role, "content": content, **more}]}


MALFORMED: list[tuple[tuple[str, Any], str]] = [
    ((CHAT, b""), "body"),
    ((CHAT, b"{"), "body"),
    ((CHAT, b"[]"), "body"),
    ((CHAT, b'"text"'), "body"),
    ((CHAT, b'{"messages": "\xff\xfe"}'), "body"),
    ((CHAT, b'{"messages": ' + b"[" * 100_000), "body"),
    ((CHAT, b'{"n": 1' + b"0" * 5000 + b"}"), "body"),
    ((CHAT, {}), "messages"),
    ((CHAT, {"messages": []}), "messages"),
    ((CHAT, {"messages": "hello"}), "messages"),
    ((CHAT, {"messages": [{"content": "a"}]}), "messages[0].role"),
    (saying("a", role="robot"), "messages[0].role"),
    (saying("a", role=7), "messages[0].role"),
    (saying(None), "messages[0].content"),
    (saying(17), "messages[0].content"),
    (saying([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0].type"),
    (saying([{"type": "text"}]), "messages[0].content[0].text"),
    (
        saying("a", role="assistant", tool_calls=[{"function": {"name": "f"}}]),
        "messages[0].tool_calls[0].function.arguments",
    ),
    ((CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}'), "messages"),
    (saying("a" * 5000), "messages"),
    (chat(model=5), "model"),
    (chat(model="gpt-17"), "model"),
    (chat(max_tokens=-1), "max_tokens"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_tokens="5"), "max_tokens"),
    (chat(max_tokens=1.5), "max_tokens"),
    (chat(max_completion_tokens=-3), "max_completion_tokens"),
    (chat(max_tokens=True), "max_tokens"),
    (chat(temperature=-0.1), "temperature"),
    (chat(temperature="hot"), "temperature"),
    ((CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}'), "temperature"),
    (chat(top_p=0), "top_p"),
    (chat(top_p=1.01), "top_p"),
    (chat(top_k=-2), "top_k"),
    (chat(min_p=2), "min_p"),
    (chat(n=0), "n"),
    (chat(n=10**9), "n"),
    (chat(n=1000), "n"),
    (chat(seed="x"), "seed"),
    (chat(seed=2**80), "seed"),
    (chat(stop=[1]), "stop[0]"),
    (chat(ignore_eos=True, response_format={"type": "json_object"}), "ignore_eos"),
    (chat(stop=[""]), "stop"),
    (chat(logit_bias={"x": 1}), "logit_bias"),
    (chat(logit_bias={"3": 1000}), "logit_bias"),
    (chat(logit_bias={"99": 1}), "logit_bias"),
    (chat(presence_penalty=3), "presence_penalty"),
    (chat(repetition_penalty=0), "repetition_penalty"),
    (chat(top_logprobs=3), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (chat(logprobs=3), "logprobs"),
    (chat(min_tokens=9, max_tokens=3), "min_tokens"),
    (chat(stream_options={"include_usage": True}), "stream_options"),
    (chat(stream="yes"), "stream"),
    (chat(response_format={"type": "yaml"}), "response_format.type"),
    (chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (chat(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}), "response_format"),
    (chat(structured_outputs={"regex": "("}), "structured_outputs"),
    (chat(structured_outputs={"regex": "a", "json": {}}), "structured_outputs"),
    (chat(tools=[TOOL]), "tools"),
    (chat(tools=[{"type": "retrieval"}]), "tools[0].type"),
    (chat(tools=[{"type": "function", "function": {"name": "with space"}}]), "tools[0].function.name"),
    (chat(tools=[TOOL, TOOL]), "tools[1].function.name"),
    (chat(tool_choice="required"), "tool_choice"),
    (chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice.function.name"),
    (chat(functions=[{"name": "f"}]), "functions"),
    (chat(modalities=["audio"]), "modalities"),
    (chat(guided_json={}), "guided_json"),
    (chat(speculative_config="eagle3"), "speculative_config"),
    (chat(speculative_config={"num_speculative_tokens": 99}), "speculative_config"),
    (chat(speculative_config={"model": "x"}), "speculative_config"),
    (chat(prediction={"type": "content"}), "prediction.content"),
    (chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
    (chat(prompt_logprobs=1, stream=True), "prompt_logprobs"),
    (text(prompt=None), "prompt"),
    (text(prompt=[]), "prompt"),
    (text(prompt=""), "prompt"),
    (text(prompt=[[]]), "prompt"),
    (text(prompt=["a", ""]), "prompt[1]"),
    (text(prompt=[3, 99]), "prompt"),
    (text(prompt=[-1]), "prompt"),
    (text(prompt=["a", 3]), "prompt"),
    (text(prompt=[0] * 300), "prompt"),
    (text(logprobs=-1), "logprobs"),
    (text(max_tokens=0), "max_tokens"),
    (text(echo=True, logprobs=1, stream=True), "echo"),
    (text(suffix="b"), "suffix"),
    (text(best_of=4), "best_of"),
    (("/tokenize", {}), "prompt"),
    (("/tokenize", {"prompt": "a", "messages": HI}), "prompt"),
    (("/detokenize", {"tokens": [99]}), "tokens[0]"),
    (("/detokenize", {"tokens": "a"}), "tokens"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with toy_server() as found:
        yield found
        assert found.complete("abc", temperature=0, max_tokens=5).status_code == 200
        found.wait_until_idle()


def test_there_are_enough_of_them() -> None:
    assert len(MALFORMED) >= 60


@pytest.mark.parametrize(("request_", "param"), MALFORMED)
def test_a_malformed_request_is_told_which_field(server: RunningServer, request_: tuple[str, Any], param: str) -> None:
    path, body = request_
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert error["param"] == param or (isinstance(error["param"], str) and error["param"].startswith(f"{param}["))
    assert error["type"] in ("invalid_request_error", "not_found_error")
    assert "\n" not in error["message"]
    assert len(error["message"]) < 700
    assert answer.headers["x-request-id"]
    assert server.client.get("/health").status_code == 200
    assert server.engine.load.num_running == server.engine.load.num_waiting == 0


def test_a_body_that_is_too_large_is_refused_unread(server: RunningServer) -> None:
    answer = server.client.post(CHAT, content=b" " * 20_000_000)
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "body"
    chunked = server.client.post(CHAT, content=(b" " * 1_000_000 for _ in range(20)))
    assert chunked.status_code == 413


def test_other_paths_and_methods_are_errors_of_the_same_form(server: RunningServer) -> None:
    for method, path, status in (("GET", "/v2", 404), ("GET", CHAT, 405), ("POST", "/health", 405)):
        answer = server.client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
        assert answer.headers["x-request-id"]


def test_text_that_is_no_json_is_refused_whatever_it_holds(server: RunningServer) -> None:
    # A page of another site may send text/plain without asking first.
    answer = server.client.post(CHAT, content=json.dumps({"messages": HI}), headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body"


def test_unknown_fields_are_accepted_and_logged_by_name(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="outrider.server"):
        answer = server.complete("abc", max_tokens=1, frobnicate="secret value", user="u")
    assert answer.status_code == 200
    assert "'frobnicate'" in caplog.text
    assert "secret" not in caplog.text
    assert "user" not in caplog.text
