"""Servers for tests: the real application on a real socket, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.engine.async_engine import AsyncEngine
from outrider.engine.memory import MemoryPlan
from outrider.engine.setup import ReadyEngine, build_engine
from outrider.models.tokenizer import Tokenizer
from outrider.sampling.grammar import GrammarCompiler
from outrider.server.app import create_app
from outrider.server.run import listen
from outrider.server.serving import Ready, Serving
from outrider.server.settings import ServerSettings
from tests.toy import Distribution, random_table
from tests.unit.engine.helpers import oracle, toy_engine

LETTERS = 26
TOY_DISTRIBUTION = random_table(LETTERS, seed=4, sharpness=3.0)
WAIT_S = 60.0

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall a function as <tool_call>{...}</tool_call>. Functions:"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template with a place for tools, in the manner of Hermes."""


class RunningServer:
    """Where a server is, and its inside."""

    def __init__(self, app: FastAPI, url: str) -> None:
        self.app = app
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=WAIT_S)

    @property
    def serving(self) -> Serving:
        found: Serving = self.app.state.serving
        return found

    @property
    def ready(self) -> Ready:
        assert self.serving.loaded is not None
        return self.serving.loaded

    @property
    def engine(self) -> AsyncEngine:
        return self.ready.engine

    def chat(self, text: str = "a", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "a", **fields: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"prompt": prompt, **fields})

    def wait_until_idle(self) -> None:
        """Nothing runs or waits, and every block is free."""
        kv = self.engine.engine.runner.kv
        deadline = time.monotonic() + WAIT_S
        while self.engine.load.num_running or self.engine.load.num_waiting or kv.num_free_blocks < kv.num_blocks:
            assert time.monotonic() < deadline, "requests or blocks are left"
            time.sleep(0.005)


@contextmanager
def running(
    config: EngineConfig,
    settings: ServerSettings | None = None,
    *,
    build: Callable[[EngineConfig], ReadyEngine] = build_engine,
    wait: bool = True,
) -> Iterator[RunningServer]:
    """A server, ready unless told not to ``wait``."""
    app = create_app(config, settings, build=build)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    found = RunningServer(app, f"http://127.0.0.1:{listener.getsockname()[1]}")
    try:
        deadline = time.monotonic() + WAIT_S
        while wait and found.client.get("/health").status_code != 200:
            assert found.serving.failure is None, found.serving.failure
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield found
    finally:
        found.client.close()
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def letters_tokenizer() -> Tokenizer:
    """Token 0 is "a", 1 is "b", up to "z"."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.WordLevel({chr(97 + i): i for i in range(LETTERS)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")


def toy_build(distribution: Distribution = TOY_DISTRIBUTION, **settings: Any) -> Callable[[EngineConfig], ReadyEngine]:
    """Loads a toy engine that writes letters, and drafts what it will say."""

    def build(_: EngineConfig) -> ReadyEngine:
        tokenizer = letters_tokenizer()
        engine = toy_engine(
            distribution,
            oracle(TOY_DISTRIBUTION, vocab_size=LETTERS),
            vocab_size=LETTERS,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            grammars=GrammarCompiler(tokenizer.backend.to_str, LETTERS, ()),
            **settings,
        )
        kv = engine.runner.kv
        memory = MemoryPlan(
            0, 0, kv.num_blocks, kv.block_size, bytes_per_block=8 * kv.block_size, draft_bytes_per_block=0
        )
        return ReadyEngine(engine, tokenizer, "toy", memory)

    return build


TOY_CONFIG = EngineConfig(model="toy", speculative=SpeculativeConfig(method="ngram"))


@contextmanager
def toy_server(
    settings: ServerSettings | None = None,
    distribution: Distribution = TOY_DISTRIBUTION,
    *,
    wait: bool = True,
    **engine: Any,
) -> Iterator[RunningServer]:
    """A server over a toy engine."""
    with running(TOY_CONFIG, settings, build=toy_build(distribution, **engine), wait=wait) as found:
        yield found
