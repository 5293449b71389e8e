"""What operators rely on: keys, limits, health, ids, logs, CORS; over a toy engine."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.routing import Route

from outrider.engine.setup import ReadyEngine
from outrider.errors import ConfigError, ModelNotFoundError
from outrider.server.logs import JsonLines
from outrider.server.run import listen
from outrider.server.settings import ServerSettings
from tests.serving import TOY_CONFIG, TOY_DISTRIBUTION, RunningServer, running, toy_build, toy_server

GUARDED = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/toy"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/nothing"),
    ("GET", "/health/"),
]
ODD_PATHS = ("//health", "/health%2f", "/assets/../v1/models", "/assets/%2e%2e/v1/models", "/./v1/models")


class Gate:
    """A distribution that waits until the gate is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def distribution(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        assert self.opened.wait(30.0)
        return TOY_DISTRIBUTION(context)


def slow_probabilities(context: tuple[int, ...]) -> NDArray[np.float64]:
    time.sleep(0.005)
    return TOY_DISTRIBUTION(context)


def raw_get(server: RunningServer, path: str, headers: str = "") -> str:
    """A GET whose path no client library has tidied up."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def test_every_guarded_path_needs_the_key_and_health_does_not() -> None:
    with toy_server(ServerSettings(api_key="sésame")) as server:
        wrong: list[dict[str, str | bytes]] = [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": "Basic sésame".encode()},
            {"Authorization": "sésame".encode()},
            {"Authorization": "Bearer sésame2".encode()},
            {"api-key": "sésame".encode()},
        ]
        for method, path in GUARDED:
            for headers in wrong:
                answer = server.client.request(method, path, headers=headers)  # type: ignore[arg-type]
                assert answer.status_code == 401, (method, path)
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.headers["x-request-id"]
        for path in ODD_PATHS:
            assert " 401 " in raw_get(server, path).splitlines()[0], path
        right = {"Authorization": "Bearer sésame".encode()}
        assert server.client.get("/v1/models", headers=right).status_code == 200  # type: ignore[arg-type]
        assert server.client.get("/health").status_code == 200


def test_every_route_of_the_app_is_guarded_but_for_three() -> None:
    with toy_server(ServerSettings(api_key="sesame")) as server:
        found = [(route.path, route.methods or ()) for route in server.app.routes if isinstance(route, Route)]
        found += [(path, operations) for path, operations in server.app.openapi()["paths"].items()]
        routes = {(method.upper(), re.sub(r"\{[^}]*\}", "x", path)) for path, methods in found for method in methods}
        assert len({path for _, path in routes}) == 12
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            codes = {
                (method, path): server.client.request(method, path, headers=headers).status_code
                for method, path in routes
            }
            opened = {path for (_, path), code in codes.items() if code != 401}
            assert opened == {"/", "/health", "/assets/x"}


def test_no_key_and_no_prompt_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"), toy_server(ServerSettings(api_key="sesame")) as server:
        headers = {"Authorization": "Bearer sesame"}
        body = {"prompt": "zebra", "max_tokens": 2, "secret_field": "zebra"}
        assert server.client.post("/v1/completions?zebra=zebra", json=body, headers=headers).status_code == 200
        server.client.post("/v1/completions", json=body, headers={"Authorization": "Bearer zebra"})
    # httpx is the client of this test.
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    assert any("POST /v1/completions 200" in line for line in ours)
    assert any("POST /v1/completions 401" in line for line in ours)
    assert not any("sesame" in line or "zebra" in line for line in ours)
    assert "sesame" not in repr(ServerSettings(api_key="sesame"))


def test_json_logs_are_one_object_per_line() -> None:
    record = logging.LogRecord("outrider.access", logging.INFO, "", 0, "a %s\nb", ("x",), None)
    record.fields = {"status": 200, "path": "/\n"}
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "a x\nb"
    assert json.loads(line)["status"] == 200
    try:
        raise ValueError("broken")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: broken" in json.loads(JsonLines().format(record))["exception"]


def test_request_ids_are_kept_if_they_are_harmless() -> None:
    with toy_server() as server:
        get = server.client.get
        assert get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        for odd in ("a b", "", "x" * 200, "<script>"):
            given = get("/health", headers={"x-request-id": odd}).headers["x-request-id"]
            assert given.startswith("req_")
        assert get("/health").headers["x-request-id"] != get("/health").headers["x-request-id"]


def test_a_full_queue_is_a_429_with_retry_after() -> None:
    gate = Gate()
    with toy_server(ServerSettings(max_waiting=1), gate.distribution, max_num_seqs=1) as server:
        with ThreadPoolExecutor(2) as pool:
            held = [pool.submit(server.complete, "a", max_tokens=2) for _ in range(2)]
            while server.engine.load.num_waiting < 1 or server.engine._num_live < 2:
                time.sleep(0.005)
            refused = server.complete("b", max_tokens=2)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            gate.opened.set()
            assert [each.result().status_code for each in held] == [200, 200]
        assert server.complete("b", max_tokens=2).status_code == 200


def test_health_says_503_while_loading_and_while_draining() -> None:
    gate = threading.Event()
    build = toy_build(slow_probabilities, k=0)

    def slowly(config: Any) -> ReadyEngine:
        assert gate.wait(30.0)
        return build(config)

    with running(TOY_CONFIG, ServerSettings(grace_s=30.0), build=slowly, wait=False) as server:
        for path in ("/health", "/v1/models"):
            loading = server.client.get(path)
            assert loading.status_code == 503
            assert loading.headers["retry-after"] == "1"
            assert "loading" in loading.json()["error"]["message"]
        assert server.client.get("/metrics").status_code == 200
        assert server.client.get("/version").status_code == 200
        gate.set()
        while server.client.get("/health").status_code != 200:
            time.sleep(0.01)
        with ThreadPoolExecutor(1) as pool:
            running_on = pool.submit(server.complete, "a", max_tokens=60)
            while server.engine.load.num_running == 0:
                time.sleep(0.001)
            drained = threading.Thread(target=lambda: asyncio.run(server.serving.drain()))
            drained.start()
            while not server.serving.draining:
                time.sleep(0.001)
            assert server.client.get("/health").status_code == 503
            assert server.complete("b").status_code == 503
            done = running_on.result()
            assert done.status_code == 200
            assert done.json()["usage"]["completion_tokens"] == 60
            drained.join()


def test_what_outlasts_the_grace_period_ends_with_an_error_in_the_stream() -> None:
    with toy_server(ServerSettings(grace_s=0.0), slow_probabilities, k=0) as server:
        body = {"prompt": "a", "max_tokens": 200, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            asyncio.run(server.serving.drain())
            rest = [line for line in lines if line]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["message"].endswith("the server is shutting down")
        assert rest[-1] == "data: [DONE]"


def test_a_model_that_can_not_be_loaded_makes_the_server_say_so() -> None:
    def fail(_: Any) -> ReadyEngine:
        raise ModelNotFoundError("no model 'x'")

    with running(TOY_CONFIG, build=fail, wait=False) as server:
        while server.serving.status == "loading":
            time.sleep(0.005)
        assert server.client.get("/health").json()["error"]["code"] == "failed"


def test_an_engine_that_breaks_ends_requests_and_the_next_one_works() -> None:
    with toy_server() as server:
        engine = server.engine.engine
        original, broken = engine.step, iter([True])

        def step() -> Any:
            if next(broken, False):
                raise RuntimeError("torn")
            return original()

        engine.step = step  # type: ignore[method-assign]
        failed = server.complete("a", max_tokens=3)
        assert failed.status_code == 500
        assert "RuntimeError: torn" in failed.json()["error"]["message"]
        assert server.complete("a", max_tokens=3).status_code == 200


def test_pings_keep_a_waiting_stream_alive() -> None:
    gate = Gate()
    with toy_server(ServerSettings(ping_s=0.02), gate.distribution) as server:
        body = {"prompt": "a", "max_tokens": 2, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            assert [next(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
            gate.opened.set()
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    with toy_server(ServerSettings(body_timeout_s=0.05)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
            assert b" 408 " in connection.recv(65536).splitlines()[0]


def test_cors_is_off_unless_an_origin_is_named() -> None:
    ask = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}

    def allowed(server: RunningServer, **headers: str) -> str | None:
        answer = server.client.options("/v1/completions", headers={**ask, **headers})
        found: str | None = answer.headers.get("access-control-allow-origin")
        return found

    with toy_server() as server:
        assert allowed(server) is None
    with toy_server(ServerSettings(cors_origins=("http://page.example",), api_key="k")) as server:
        assert allowed(server) == "http://page.example"
        assert allowed(server, Origin="http://other.example") is None
        refused = server.client.get("/v1/models", headers={"Origin": "http://page.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "http://page.example"
        assert "x-request-id" in refused.headers["access-control-expose-headers"]


def test_a_port_that_is_taken_is_a_users_error() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*choose another"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="cannot listen"):
        listen("no.such.host.invalid", 0)
