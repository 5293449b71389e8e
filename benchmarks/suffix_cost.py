"""What the suffix drafter costs: ``python benchmarks/suffix_cost.py [--requests 64] [--tokens 131072] [--json FILE]``.

For each kind of text that many requests of that many tokens are indexed; then each gets one token more and one
proposal, all of them in turn, round after round. Kinds: *template* (lines that repeat but for a few words), *zipf*
(tokens as frequent as words, no order: mostly short matches), *one* (a single token: every place matches). Times are
the process's own. The last line of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from outrider.cli._report import environment, write_json
from outrider.drafters.base import DraftRequest
from outrider.drafters.suffix import SuffixDrafter
from outrider.request import Request
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams

_VOCABULARY = 32768
_LINE = 24


def template(count: int, chance: random.Random) -> list[int]:
    """Lines of the same tokens, of which four are new in each."""
    line = [chance.randrange(_VOCABULARY) for _ in range(_LINE)]
    tokens: list[int] = []
    while len(tokens) < count:
        for place in chance.sample(range(_LINE), 4):
            line[place] = chance.randrange(_VOCABULARY)
        tokens += line
    return tokens[:count]


def zipf(count: int, chance: random.Random) -> list[int]:
    """Independent tokens, the n-th with a chance in proportion to 1 / n."""
    return chance.choices(
        range(_VOCABULARY), cum_weights=list(accumulate(1 / n for n in range(1, _VOCABULARY + 1))), k=count
    )


def one(count: int, chance: random.Random) -> list[int]:
    """The same token throughout."""
    return [7] * count


KINDS: dict[str, Callable[[int, random.Random], list[int]]] = {"template": template, "zipf": zipf, "one": one}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-k", type=int, default=15)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    params, sampler, noise = SamplingParams(), RequestSampler(SamplingParams(), [0], vocab_size=1), KeyedNoise(0)
    report: dict[str, Any] = {"kinds": {}}
    for kind, make in KINDS.items():
        # One text for all, so that memory holds their indexes alone; each request has an index of its own.
        text = make(arguments.tokens + arguments.rounds + 1, random.Random(1))
        drafter = SuffixDrafter(cache_tokens=0)
        batch = []
        for number in range(arguments.requests):
            request = Request(str(number), tuple(text[: arguments.tokens]), params, 0, max_total_tokens=1 << 20)
            batch.append(DraftRequest(request, arguments.k, noise, sampler))
            drafter.propose(batch[-1:])
        times = []
        for turn in range(arguments.rounds):
            for entry in batch:
                entry.request.token_ids.append(text[arguments.tokens + turn])
            begin = time.process_time()
            drafter.propose(batch)
            times.append(1e3 * (time.process_time() - begin))
        figures = {
            "ms_for_all": statistics.median(times),
            "most_ms_for_all": max(times),
            "bytes_per_token": drafter.nbytes / arguments.requests / (arguments.tokens + arguments.rounds),
        }
        report["kinds"][kind] = figures
        print(
            f"{kind:9s} {arguments.requests} proposals over {arguments.tokens} tokens each: "
            f"{figures['ms_for_all']:.2f} ms, at most {figures['most_ms_for_all']:.2f}; "
            f"{figures['bytes_per_token']:.1f} bytes a token",
            file=sys.stderr,
            flush=True,
        )
    report |= environment(vars(arguments))
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
