"""What a running server holds: the engine, once it is loaded, and what it is called."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from fastapi import Request

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.engine.async_engine import AsyncEngine, EngineLoad
from outrider.engine.setup import ReadyEngine
from outrider.errors import InvalidRequestError, counted
from outrider.models.tokenizer import Tokenizer
from outrider.server.answer import Options
from outrider.server.errors import ApiError, bad_request
from outrider.server.metrics import Metrics
from outrider.server.reasoning import is_read
from outrider.server.schemas import GenerationRequest
from outrider.server.settings import ServerSettings

logger = logging.getLogger(__name__)

Status = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True)
class Ready:
    """A loaded engine, and all that routes need to know of it."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    speculative: SpeculativeConfig
    names: tuple[str, ...]
    root: str
    settings: ServerSettings
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.engine.engine.max_model_len

    @property
    def methods(self) -> tuple[str, ...]:
        """What requests may choose to draft with; only ``off`` without speculation."""
        return self.engine.engine.speculator.methods

    @property
    def max_drafts(self) -> int:
        """The most tokens that are drafted per step; requests may lower it."""
        return 0 if not self.engine.engine.speculator.active else self.speculative.num_speculative_tokens

    @property
    def reasoning(self) -> bool:
        """Whether thoughts are told from the answers of chats."""
        return is_read(self.settings.reasoning_parser, self.tokenizer.chat_template)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises a 404 for a model that is not served here."""
        if name is None or name in self.names:
            return name or self.names[0]
        raise ApiError(
            404,
            f"the model {name!r} is not here; this server has: {', '.join(self.names)}",
            param="model",
            code="model_not_found",
        )

    def encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a prompt. Raises a 400 naming ``param`` if it is too long, empty, or no Unicode."""
        try:
            token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except InvalidRequestError as error:
            raise bad_request(str(error), param) from None
        self.check_length(token_ids, param)
        return token_ids

    def check_length(self, token_ids: list[int], param: str) -> None:
        """Raise a 400 if the context has no room for these and one token more, or there is none of them."""
        if not token_ids:
            raise bad_request(f"{param} is empty; give at least one token", param)
        for place, token_id in enumerate(token_ids):
            if not 0 <= token_id < self.engine.engine.vocab_size:
                raise bad_request(
                    f"{param} token {place} is {token_id}, but ids go from 0 to {self.engine.engine.vocab_size - 1}",
                    param,
                )
        if len(token_ids) >= self.max_model_len:
            raise bad_request(
                f"{param} has {counted(len(token_ids), 'token')}, but the context holds {self.max_model_len} and one "
                f"must be left to generate; shorten it",
                param,
                code="context_length_exceeded",
            )

    def options(self, body: GenerationRequest) -> Options:
        """What the request wants said beside the text."""
        stream = body.stream_options
        return Options(
            include_usage=stream is not None and bool(stream.include_usage),
            continuous_usage=stream is not None and bool(stream.continuous_usage_stats),
            detailed_metrics=bool(body.detailed_metrics),
            predicted=body.prediction is not None,
            ping_s=self.settings.ping_s,
        )


class Serving:
    """One server's state, from its start to its end."""

    def __init__(self, config: EngineConfig, settings: ServerSettings) -> None:
        self.config = config
        self.settings = settings
        self.draining = False
        self.failure: Exception | None = None
        self._ready: Ready | None = None
        self._metrics: Metrics | None = None

    @property
    def status(self) -> Status:
        """Whether it can answer."""
        if self.failure is not None or (self._ready is not None and self._ready.engine.failure is not None):
            return "failed"
        if self.draining:
            return "draining"
        return "loading" if self._ready is None else "ready"

    def load(self, build: Callable[[EngineConfig], ReadyEngine]) -> None:
        """Load the model; takes as long as that takes. Keeps what is raised in ``failure``, and raises it."""
        try:
            built = build(self.config)
            if self.settings.chat_template is not None:
                built.tokenizer.chat_template = self.settings.chat_template
            names = self.settings.served_model_names or (built.model_name,)
            self._metrics = Metrics(names[0], self._load, lambda: built.engine.speculator.nbytes)
            engine = AsyncEngine(built.engine, max_waiting=self.settings.max_waiting, observer=self._metrics)
            self._ready = Ready(
                engine, built.tokenizer, self.config.speculative, names, built.model_name, self.settings
            )
            logger.info("ready: %s, speculation %s", ", ".join(names), built.engine.speculation)
        except Exception as error:
            self.failure = error
            raise

    def ready(self) -> Ready:
        """The engine. Raises a 503 while it is loading, or going."""
        if self._ready is None or self.status != "ready":
            raise ApiError(503, f"the server is {self.explanation}; try again later", code="unavailable")
        return self._ready

    @property
    def loaded(self) -> Ready | None:
        """The engine if it is loaded, whatever its state."""
        return self._ready

    @property
    def explanation(self) -> str:
        """The status in words."""
        words = {"ready": "ready", "loading": "loading its model", "draining": "shutting down"}
        if (word := words.get(self.status)) is not None:
            return word
        return "broken" if self._ready is None else f"broken: {self._ready.engine.failure}"

    def metrics(self) -> bytes:
        """Metrics in Prometheus' text format; empty while loading."""
        return b"" if self._metrics is None else self._metrics.text()

    async def drain(self) -> None:
        """Refuse new requests, and let those that run end within the grace period."""
        self.draining = True
        if self._ready is not None:
            await self._ready.engine.drain(self.settings.grace_s)

    def close(self) -> None:
        """End the engine's thread."""
        if self._ready is not None:
            self._ready.engine.close()

    def _load(self) -> EngineLoad:
        return EngineLoad(0, 0, 0.0) if self._ready is None else self._ready.engine.load


def serving(request: Request) -> Serving:
    """The state of the app that a request came to."""
    found: Serving = request.app.state.serving
    return found
