"""Suffix against n-gram where both replay one answer with the same K: it never needs more passes, and often fewer."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from outrider import native
from outrider.config import SpeculativeConfig
from outrider.drafters.base import Drafter, DraftRequest
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.request import Request
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise
from outrider.sampling_params import SamplingParams

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

FIELDS = ("name", "price", "stock", "weight", "height", "width", "depth")
CODE = "\n".join(
    f'def get_{field}(self):\n    value = self._data.get("{field}", {place})\n    if value is None:\n'
    f'        raise KeyError("{field} is missing")\n    return value\n'
    for place, field in enumerate(FIELDS)
)
TAGS = ('["new", "sale"]', '["sale"]', '["new"]', "[]")
RECORDS = "\n".join(
    f'{{"id": {n}, "name": "Item {n}", "price": {n * 37 % 90 + 5}.{n * 7 % 10}, "tags": {TAGS[n * n % 7 % 4]}, '
    f'"in_stock": {"false" if n % 3 == 1 else "true"}}}'
    for n in range(1, 25)
)
FUNCTION = (
    "def read(path):\n    with open(path) as file:\n        rows = list(csv.reader(file))\n"
    "    head = rows[0]\n    return [dict(zip(head, row)) for row in rows[1:]]\n"
)
LATER = FUNCTION.replace("(path):", "(path, comma):").replace("reader(file)", "reader(file, delimiter=comma)")
WORKLOADS = {
    "editing": (f"Rename get_price.\n{CODE}\n", CODE.replace("get_price", "current_price")),
    "chat": (
        f"Read a table.\n{FUNCTION}Take the delimiter as well.\n",
        f"Here it is:\n{LATER}\nUse it so: read(path, comma)",
    ),
    "records": ("Write 24 records, each like this one:\n" + RECORDS.splitlines()[0] + "\n", RECORDS),
}


def passes(drafter: Drafter, prompt: list[int], answer: list[int], k: int) -> int:
    """Passes of the target that ``answer`` takes with the drafter's help."""
    request = Request("r", tuple(prompt), SamplingParams(), noise_seed=0, max_total_tokens=1 << 16)
    sampler, done, count = RequestSampler(SamplingParams(), [0], vocab_size=1), 0, 0
    while done < len(answer):
        (proposal,) = drafter.propose([DraftRequest(request, k, KeyedNoise(0), sampler)])
        pairs = zip(proposal.token_ids, answer[done:], strict=False)
        said = next((place for place, (one, other) in enumerate(pairs) if one != other), len(proposal)) + 1
        request.token_ids += answer[done : done + said]
        done, count = done + said, count + 1
    return count


def in_tokens(*texts: str) -> list[list[int]]:
    known: dict[str, int] = {}
    pieces = [re.findall(r"\s*\w+|\s*\W", text) for text in texts]
    return [[known.setdefault(piece, len(known)) for piece in each] for each in pieces]


@pytest.mark.parametrize("k", [4, 8, 15])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_with_fixed_k_suffix_needs_no_more_passes_than_ngram(workload: str, k: int) -> None:
    prompt, answer = in_tokens(*WORKLOADS[workload])
    config = SpeculativeConfig(method="suffix", adaptive=False)
    make: dict[str, Callable[[], Drafter]] = {
        "suffix": lambda: SuffixDrafter(floor=config.resolved_suffix_min_probability, cache_tokens=0),
        "ngram": lambda: NGramDrafter(min_match=config.prompt_lookup_min, max_match=config.prompt_lookup_max),
    }
    counts = {name: passes(drafter(), prompt, answer, k) for name, drafter in make.items()}
    assert counts["suffix"] <= counts["ngram"] < len(answer)
