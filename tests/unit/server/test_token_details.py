"""``token_details`` over HTTP, over a toy engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import RunningServer, toy_server

ASKED = {"max_tokens": 12, "temperature": 0, "token_details": True}
MADE = {"token_id", "text", "source", "step", "position"}
FIELDS = MADE | {"target_prob", "draft_prob", "acceptance_prob", "rejected"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with toy_server() as running:
        yield running


def send(server: RunningServer, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of an answer, or of each chunk of a stream."""
    answer = (server.chat if kind == "chat" else server.complete)("ab", **fields)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return list(answer.json()["choices"])
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_each_token_has_its_details_streamed_or_whole(server: RunningServer, kind: str) -> None:
    (whole,) = send(server, kind, **ASKED)
    details = whole["token_details"]
    text = whole["message"]["content"] if kind == "chat" else whole["text"]
    assert len(details) == 12
    assert all(set(detail) == FIELDS for detail in details)
    assert "".join(detail["text"] for detail in details) == text
    assert {"target", "accepted", "bonus"} <= {detail["source"] for detail in details}
    chunks = send(server, kind, stream=True, **ASKED)
    assert len(chunks) < 12
    assert [detail for chunk in chunks for detail in chunk["token_details"]] == details


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_nothing_is_told_unless_it_is_asked_for(server: RunningServer, kind: str) -> None:
    for stream in (False, True):
        assert all("token_details" not in choice for choice in send(server, kind, max_tokens=4, stream=stream))


def test_what_can_not_be_honoured_is_refused_by_name(server: RunningServer) -> None:
    for fields in ({"token_details": "some"}, {"token_details": True, "max_tokens": 0, "echo": True}):
        answer = server.complete("ab", **fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "token_details"


def test_the_page_needs_no_key_and_is_no_part_of_the_api(server: RunningServer) -> None:
    answer = server.client.get("/")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert server.client.get("/assets/nothing.js").status_code == 404
    assert "/" not in server.client.get("/openapi.json").json()["paths"]
