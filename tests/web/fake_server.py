"""A server of canned answers: the playground's page over an API whose every token, pause and failure is known."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from outrider.outputs import SpeculationStatus
from outrider.server.web import mount_playground

MODEL = "canned-1b"
WORDS = ["The", " quick", " </script>", " brown", " fox", "\n", " jumps", " over", " <b>", " the", " lazy", " dog"]
PATTERN = ["target", "accepted", "accepted", "recovered", "accepted", "accepted", "accepted", "bonus"]


def canned_tokens(*, speculation: bool, count: int = 48) -> list[list[dict[str, Any]]]:
    """Steps of tokens; the same ids whether or not drafts made them."""
    steps: list[list[dict[str, Any]]] = [[]]
    for index in range(count):
        source = PATTERN[index % len(PATTERN)] if speculation else "target"
        accepted = source == "accepted"
        rejected = {"token_id": 99, "text": " cat", "target_prob": 0.03, "draft_prob": 0.6, "acceptance_prob": 0.05}
        steps[-1].append(
            {
                "token_id": index % len(WORDS),
                "text": WORDS[index % len(WORDS)],
                "source": source,
                "step": len(steps),
                "position": len(steps[-1]),
                "target_prob": 0.8123,
                "draft_prob": 0.9 if accepted else None,
                "acceptance_prob": 0.9023 if accepted else None,
                "rejected": rejected if source == "recovered" else None,
            }
        )
        if not accepted:
            steps.append([])
    return [step for step in steps if step]


def thinking_tokens() -> list[list[dict[str, Any]]]:
    """Two steps of thoughts, whose end mark is split, before the canned ones; those keep their numbers."""
    texts = [["<think>", "\n", "Let"], [" me", " see", "\n</", "think>", "\n\n"]]
    probs = {"target_prob": 0.5, "draft_prob": None, "acceptance_prob": None, "rejected": None}
    return [
        [{"token_id": 50, "text": text, "source": "target", "step": 0, "position": 0, **probs} for text in step]
        for step in texts
    ]


def told_of(steps: list[list[dict[str, Any]]], *, speculation: bool) -> dict[str, Any]:
    """What ``detailed_metrics`` says of these steps: one draft more than was accepted where a token was recovered."""
    accepted = [sum(token["source"] == "accepted" for token in step) for step in steps]
    drafted = [count + (step[-1]["source"] == "recovered") for count, step in zip(accepted, steps, strict=True)]
    ends = [step[-1]["source"] for step in steps]
    reason = "nothing retrieved" if speculation else ""
    return {
        "per_step_drafted": drafted,
        "per_step_accepted": accepted,
        "per_step_drafter": ["suffix" if end == "recovered" else "" for end in ends],
        "per_step_why": [reason if number and end == "target" else "" for number, end in enumerate(ends)],
    }


@dataclass
class FakeServer:
    """``requests`` are the bodies it got; the other fields say how it answers, and may be changed at any time."""

    speculation: SpeculationStatus = field(default_factory=lambda: SpeculationStatus("ngram", 4))
    chat: bool = True
    loading: bool = False
    key: str | None = None
    refusal: tuple[int, dict[str, Any]] | None = None
    cut_after: int | None = None
    fail_after: int | None = None
    differs_at: int | None = None
    thinks: bool = False
    pause: float = 0.004
    requests: list[dict[str, Any]] = field(default_factory=list)
    open_streams: int = 0
    url: str = ""

    def app(self) -> Starlette:
        app = Starlette()
        app.add_route("/v1/models", self._models)
        app.add_route("/v1/chat/completions", self._complete, methods=["POST"])
        app.add_route("/v1/completions", self._complete, methods=["POST"])
        mount_playground(app)
        return app

    def _locked(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "a valid API key is required"}}, 401)

    async def _models(self, request: Request) -> Response:
        told = {**self.speculation.to_dict(), "methods": ["auto", "off", "ngram"]}
        entry = {"id": MODEL, "object": "model", "chat": self.chat, "speculation": told}
        if self.loading:
            return JSONResponse({"error": {"message": "the server is loading the model"}}, 503)
        return self._locked(request) or JSONResponse({"object": "list", "data": [entry]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if (locked := self._locked(request)) is not None:
            return locked
        if self.refusal is not None:
            return JSONResponse({"error": self.refusal[1]}, self.refusal[0])
        self.requests.append(body)
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        speculation = body.get("speculative_config") != "off"
        steps = canned_tokens(speculation=speculation, count=min(48, body.get("max_tokens") or 48))
        if self.thinks:
            steps = thinking_tokens() + steps
        told = self.speculation.in_request(None if speculation else "off", None)
        self.open_streams += 1
        try:
            for number, details in enumerate(steps):
                if number == self.cut_after:
                    raise RuntimeError("cut on purpose")
                if number == self.fail_after:
                    yield f"data: {json.dumps({'error': {'message': 'the forward pass failed'}})}\n\n"
                    return
                if not speculation and self.differs_at is not None:
                    for place, detail in enumerate(details):
                        if number + place == self.differs_at:
                            detail["token_id"] += 1
                text = "".join(detail["text"] for detail in details)
                choice: dict[str, Any] = {"index": 0, "token_details": details, "finish_reason": None}
                part = "reasoning_content" if self.thinks and number < 2 else "content"
                choice |= {"delta": {part: text}} if "messages" in body else {"text": text}
                if number == len(steps) - 1:
                    choice["finish_reason"] = "length"
                last: dict[str, Any] = {}
                if number == len(steps) - 1:
                    stats = told_of(steps, speculation=speculation) if body.get("detailed_metrics") else {}
                    last = {"metrics": {"speculation": told.to_dict(), "speculative_decoding": stats}}
                yield f"data: {json.dumps({'choices': [choice]} | last)}\n\n: ping\n\n"
                await asyncio.sleep(self.pause)
            yield "data: [DONE]\n\n"
        finally:
            self.open_streams -= 1


@contextmanager
def serving(app: Any, port: int = 0) -> Iterator[str]:
    """Serve ``app`` on loopback from a thread; yields its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.01)
    bound = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{bound}"
    finally:
        server.should_exit = True
        thread.join(10)
