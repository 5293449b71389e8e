"""The server with a real model: what is on the wire, who leaves early, and what operators see."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving import RunningServer

pytestmark = pytest.mark.model

LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "temperature": 0}


def events(response: httpx.Response) -> list[Any]:
    """The stream's events; checks the framing: ``data: …`` and an empty line, LF, and [DONE] at the end."""
    assert response.headers["content-type"].startswith("text/event-stream")
    body = response.content
    assert b"\r" not in body
    assert body.endswith(b"data: [DONE]\n\n")
    blocks = body.decode().removesuffix("data: [DONE]\n\n").split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_characters_are_never_cut(server: RunningServer) -> None:
    text = "héllo 😀 wörld 日本語 🇫🇷 e\u0301"
    fields: dict[str, Any] = {"structured_outputs": {"choice": [text]}, "max_tokens": 60, "return_token_ids": True}
    streamed = events(server.chat(stream=True, **fields))
    pieces = [chunk["choices"][0] for chunk in streamed]
    assert "".join(piece["delta"]["content"] for piece in pieces) == text
    assert not any("\ufffd" in piece["delta"]["content"] for piece in pieces)
    ids = [token_id for piece in pieces for token_id in piece["token_ids"]]
    assert len(ids) > len(text) / 2
    whole = server.chat(**fields).json()["choices"][0]
    assert whole["message"]["content"] == text
    assert whole["token_ids"] == ids


def test_usage_and_token_ids_come_where_they_are_asked_for(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = events(
        server.complete(
            "one two three",
            stream=True,
            stream_options=options,
            max_tokens=6,
            ignore_eos=True,
            return_token_ids=True,
            logprobs=0,
            detailed_metrics=True,
        )
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert [chunk["choices"] == [] for chunk in streamed] == [False] * (len(streamed) - 1) + [True]
    first = streamed[0]["choices"][0]
    assert first["prompt_token_ids"] == server.ready.tokenizer.encode("one two three")
    assert first["logprobs"]["text_offset"] == [0]
    stats = streamed[-1]["metrics"]["speculative_decoding"]
    for key in ("per_step_accepted", "per_step_drafted", "per_step_drafter", "per_step_why"):
        assert len(stats[key]) == len(streamed) - 1, key
    plain = events(server.complete("one", stream=True, max_tokens=1))
    assert "usage" not in plain[0]


def test_prompt_logprobs_are_those_of_echo(server: RunningServer) -> None:
    both = server.complete("The capital of", max_tokens=1, prompt_logprobs=1, echo=True, logprobs=1).json()
    choice = both["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    ids = server.ready.tokenizer.encode("The capital of")
    chosen = [entry[str(token_id)]["logprob"] for entry, token_id in zip(choice["prompt_logprobs"][1:], ids[1:])]  # noqa: B905
    assert chosen == choice["logprobs"]["token_logprobs"][1 : len(ids)]
    chat = server.chat("Hello", max_tokens=1, prompt_logprobs=0).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_special_tokens_show_when_asked_for(server: RunningServer) -> None:
    forced: dict[str, Any] = {"allowed_token_ids": [1], "max_tokens": 2, "ignore_eos": True}
    assert server.complete("a", **forced).json()["choices"][0]["text"] == ""
    shown = server.complete("a", skip_special_tokens=False, **forced).json()["choices"][0]["text"]
    assert shown == "<|im_start|>" * 2


def test_a_stop_string_ends_and_is_named(server: RunningServer) -> None:
    choice = server.complete("1, 2, 3, 4, 5, 6,", temperature=0, stop=["9", "8"], max_tokens=40).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "8"
    assert choice["text"].strip() == "7,"


def test_tokenize_and_back(server: RunningServer) -> None:
    post = server.client.post
    found = post("/tokenize", json={"prompt": "héllo 😀", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": "héllo 😀"}
    chat = post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json()
    assert post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"].startswith("<|im_start|>user\nHi")


def test_a_client_that_leaves_a_stream_gives_the_blocks_back(server: RunningServer) -> None:
    with server.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True, **LONG}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        assert server.engine.load.num_running == 1
    server.wait_until_idle()


def test_a_client_that_leaves_before_the_whole_answer_gives_the_blocks_back(server: RunningServer) -> None:
    body = json.dumps({"prompt": "a", **LONG}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"\r\n" + body)
        while server.engine.load.num_running == 0:
            pass
    server.wait_until_idle()


def test_the_status_of_speculation_is_told_in_fields(server: RunningServer) -> None:
    active = {
        "active": True,
        "description": "ngram, up to 4 tokens per step",
        "method": "ngram",
        "num_speculative_tokens": 4,
        "inactive_reason": None,
    }
    told = server.client.get("/v1/models").json()["data"][0]["speculation"]
    assert told == {**active, "methods": ["auto", "off", "ngram", "prediction"]}
    done = server.complete("1 2 3 4", temperature=0, max_tokens=2).json()
    assert done["metrics"]["speculation"] == active
    done = server.complete("1 2 3 4", temperature=0, max_tokens=2, speculative_config="off").json()
    assert done["metrics"]["speculation"] == {
        **active,
        "active": False,
        "description": "inactive: turned off in this request",
        "inactive_reason": "turned off in this request",
    }


def test_a_scraper_finds_what_speculation_did(server: RunningServer) -> None:
    def scrape() -> dict[tuple[str, str | None], float]:
        text = server.client.get("/metrics").text
        return {
            (sample.name, sample.labels.get("position")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    before = scrape()
    done = server.complete("1 2 3 4 1 2 3 4 1 2 3 4", temperature=0, max_tokens=24, ignore_eos=True).json()
    after = scrape()
    stats = done["metrics"]["speculative_decoding"]

    def gained(name: str, position: str | None = None) -> float:
        return after[name, position] - before.get((name, position), 0.0)

    for prefix in ("vllm", "outrider"):
        assert gained(f"{prefix}:spec_decode_num_drafts_total") == stats["num_spec_steps"] > 0
        assert gained(f"{prefix}:spec_decode_num_draft_tokens_total") == stats["num_draft_tokens"]
        assert gained(f"{prefix}:spec_decode_num_accepted_tokens_total") == stats["num_accepted_draft_tokens"] > 0
        name = f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total"
        positions = [gained(name, str(position)) for position in range(4) if (name, str(position)) in after]
        assert sum(positions) == stats["num_accepted_draft_tokens"]
    assert gained("outrider:generation_tokens_total") == 24
    assert gained("outrider:time_to_first_token_seconds_count") == 1
    assert gained("outrider:inter_token_latency_seconds_count") == 23
    assert gained("outrider:e2e_request_latency_seconds_count") == 1
