"""Many streams at once against a server in a process of its own, some of whose clients leave half-way.

Reports failed requests, whether all blocks came back, the server's memory before and after, and time to first token and
per output token, with speculation off and on, for two minutes each: ``python benchmarks/serve_load.py --json FILE``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError

import numpy as np
import psutil

from outrider.cli._report import environment, write_json

PROMPTS = (
    "Write the numbers from one to fifty in words: one, two, three,",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n",
    "Once upon a time, in a village by the sea, there lived",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
)
START_S = 120.0
MOST_GROWTH = 1.05
"""Memory after the load over that before, above which it is not flat."""


@dataclass
class Seen:
    """What the clients saw. Times in seconds; ``failures`` in words."""

    num_whole: int = 0
    num_left: int = 0
    num_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextmanager
def server(model: str, speculative_config: str) -> Iterator[tuple[int, psutil.Process]]:
    """A server of its own on a free port; yields the port and the process once it is ready."""
    command = [
        sys.executable,
        "-m",
        "outrider",
        "serve",
        model,
        "--port",
        "0",
        "--speculative-config",
        speculative_config,
        "--kv-cache-memory",
        "512MiB",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        found = re.search(r":(\d+)/", first)
        if found is None:
            raise SystemExit(first + process.stderr.read())
        # Its log must be read, or the pipe fills up and stops it.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        port = int(found[1])
        deadline = time.monotonic() + START_S
        while not _healthy(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("the server did not become ready")
            time.sleep(0.2)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False


def gauge(port: int, name: str) -> float:
    """One value of the server's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(rf"^outrider:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"the server has no metric outrider:{name}")
    return float(found[1])


async def one_stream(port: int, chance: random.Random, leaves: bool, seen: Seen) -> None:
    """One request over a connection of its own; ``leaves`` closes it half-way."""
    wanted = chance.randint(16, 48)
    body = json.dumps(
        {
            "prompt": chance.choice(PROMPTS),
            "max_tokens": wanted,
            "ignore_eos": True,
            "temperature": chance.choice([0.0, 0.8]),
            "stream": True,
            "return_token_ids": True,
        }
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        began, first, last, count = time.monotonic(), 0.0, 0.0, 0
        status = await reader.readline()
        if b" 200 " not in status:
            seen.failures.append(status.decode().strip() or "the connection was closed")
            return
        done = False
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                seen.failures.append(event["error"]["message"])
                return
            count += len(event["choices"][0]["token_ids"])
            last = time.monotonic()
            first = first or last
            if leaves and count >= wanted // 2:
                seen.num_left += 1
                return
        if not done or count != wanted:
            seen.failures.append(f"the stream ended after {count} of {wanted} tokens")
            return
        seen.num_whole += 1
        seen.num_tokens += count
        seen.ttft.append(first - began)
        seen.tpot.append((last - first) / (count - 1))
    finally:
        writer.close()


async def load(port: int, streams: int, leaving: float, seconds: float) -> Seen:
    """``streams`` clients at a time, each asking again as soon as it is done, for so long."""
    seen, deadline = Seen(), time.monotonic() + seconds

    async def client(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < deadline:
            try:
                await one_stream(port, chance, chance.random() < leaving, seen)
            except OSError as error:
                seen.failures.append(str(error))

    await asyncio.gather(*(client(number) for number in range(streams)))
    return seen


def measure(model: str, speculative_config: str, streams: int, leaving: float, seconds: float) -> dict[str, Any]:
    """All figures of one server."""
    with server(model, speculative_config) as (port, process):
        asyncio.run(load(port, streams, leaving, min(seconds, 5.0)))  # memory settles
        before = process.memory_info().rss
        began = time.monotonic()
        seen = asyncio.run(load(port, streams, leaving, seconds))
        wall = time.monotonic() - began
        deadline = time.monotonic() + 10.0
        while gauge(port, "num_requests_running") and time.monotonic() < deadline:
            time.sleep(0.1)
        return {
            "speculative_config": speculative_config,
            "streams": streams,
            "whole": seen.num_whole,
            "left": seen.num_left,
            "failed": len(seen.failures),
            "failures": sorted(set(seen.failures))[:10],
            "tokens_per_s_of_whole": seen.num_tokens / wall,
            "ttft_s": _spread(seen.ttft),
            "tpot_s": _spread(seen.tpot),
            "kv_usage_afterwards": gauge(port, "kv_cache_usage_perc"),
            "running_afterwards": gauge(port, "num_requests_running"),
            "rss_before_mib": before / 2**20,
            "rss_after_mib": process.memory_info().rss / 2**20,
        }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "mean": float(np.mean(values)),
        "median": float(np.median(values)),
        "p99": float(np.percentile(values, 99)),
    }


def main() -> int:
    """Measure, print, and say with the exit code whether nothing failed, nothing was left and memory is flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--leaving", type=float, default=0.2, help="share of clients that leave half-way")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--speculative-config", action="append", help="may be repeated; default: off and auto")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    results = []
    for config in arguments.speculative_config or ["off", "auto"]:
        result = measure(arguments.model, config, arguments.streams, arguments.leaving, arguments.seconds)
        print(json.dumps(result, indent=2))
        results.append(result)
    if arguments.json:
        write_json({"results": results, **environment(vars(arguments))}, arguments.json)
    return 0 if all(_sound(result) for result in results) else 1


def _sound(result: dict[str, Any]) -> bool:
    """Nothing failed, nothing is left, and memory is flat."""
    left = result["running_afterwards"] or result["kv_usage_afterwards"]
    return not result["failed"] and not left and result["rss_after_mib"] < MOST_GROWTH * result["rss_before_mib"]


if __name__ == "__main__":
    sys.exit(main())
