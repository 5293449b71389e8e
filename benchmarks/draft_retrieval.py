"""Would retrieval speed a draft model up? ``python -m benchmarks.draft_retrieval``.

A draft model runs one pass for each token that it drafts. Its own next tokens could be looked up in the request's text
and in what it drafted so far, and several of them verified in one pass of the draft model: the same drafts, since it
keeps those that it would have said (greedy, or with the noise of a seeded request), from fewer passes of more rows.

What is run are today's drafts, recorded round by round; what retrieval would have made of each round is counted:

    ngram, suffix   everything that the look-up gives is verified by the draft model
    later           the round's first pass goes without, so that only what follows a draft is looked up
    oracle          the look-up's first wrong token, and all after it, is left out by magic: a bound for any rule that
                    decides how much of suffix's or ngram's proposal to verify

Passes of both models are timed at each number of rows, interleaved, and the counts priced with the medians. ``auto``
drafts with the model only where what was retrieved promises less; the others draft with it in every step.
The last line of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import retrieval

from outrider import LLM, SamplingParams
from outrider.cli._report import environment, write_json
from outrider.drafters.base import Drafter, DraftRequest, Proposal, extended
from outrider.drafters.ngram import NGramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.request import Request
from outrider.runner.model_runner import Chunk
from outrider.sampling.request_sampler import RequestSampler
from outrider.sampling.rng import KeyedNoise

COMPLETIONS = (
    "def longest_common_prefix(words: list[str]) -> str:\n"
    '    """The longest string that all words begin with; empty if there is none.\n\n'
    '    >>> longest_common_prefix(["flower", "flow", "flight"])\n    \'fl\'\n    """\n',
    "def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:\n"
    '    """Merge intervals that overlap; the result is sorted by where they begin.\n\n'
    '    >>> merge_intervals([(1, 3), (2, 6), (8, 10)])\n    [(1, 6), (8, 10)]\n    """\n',
    "def roman_numeral(number: int) -> str:\n"
    '    """The roman numeral of a number from 1 to 3999.\n\n    >>> roman_numeral(1994)\n    \'MCMXCIV\'\n    """\n',
)
ARMS: dict[str, dict[str, Any]] = {
    "draft_model K=4": {"method": "draft_model", "num_speculative_tokens": 4, "adaptive": False},
    "draft_model K=8": {"method": "draft_model", "num_speculative_tokens": 8, "adaptive": False},
    "auto": {"method": "auto"},
}
RULES = ("ngram", "suffix", "suffix later", "suffix oracle")
MOST_ROWS = 17


@dataclass
class Recorder:
    """A model drafter that goes on as before while its rounds are written down: ``(context, drafts)`` of each."""

    inner: Any
    rounds: list[tuple[list[int], tuple[int, ...]]] = field(default_factory=list)

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """What the drafter proposes."""
        proposals: list[Proposal] = self.inner.propose(batch)
        self.rounds += [(list(e.request.token_ids), p.token_ids) for e, p in zip(batch, proposals, strict=True)]
        return proposals

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class LookUp:
    """One retrieval drafter over one text that grows and is cut back."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._drafter: Drafter = self._new()
        self._tokens: list[int] = []

    def after(self, tokens: list[int], count: int) -> tuple[int, ...]:
        """At most ``count`` tokens that may follow ``tokens``."""
        if tokens[: len(self._tokens)] != self._tokens:
            self._drafter = self._new()
        self._tokens = list(tokens)
        request = Request("text", tuple(tokens), SamplingParams(), noise_seed=0, max_total_tokens=len(tokens) + count)
        sampler = RequestSampler(SamplingParams(), [0], vocab_size=1)
        (proposal,) = self._drafter.propose([DraftRequest(request, count, KeyedNoise(0), sampler)])
        return proposal.token_ids

    def _new(self) -> Drafter:
        return SuffixDrafter(cache_tokens=0) if self.kind == "suffix" else NGramDrafter(min_match=1, max_match=4)


def passes_of(context: list[int], drafts: tuple[int, ...], rule: str) -> list[int]:
    """Rows of each pass that the draft model needs for ``drafts``; what its cache lacks of the context is one row."""
    kind, _, how = rule.partition(" ")
    look_up, rows, done = LookUp(kind), [], 0
    while done < len(drafts):
        left = len(drafts) - done
        found = look_up.after([*context, *drafts[:done]], left - 1) if left > 1 and (done or how != "later") else ()
        matched = next((i for i, token in enumerate(found) if token != drafts[done + i]), len(found))
        rows.append(1 + (matched if how == "oracle" else len(found)))
        done += matched + 1
    return rows


def pass_seconds(runner: Any, most: int, context: int, repeats: int) -> list[float]:
    """Median seconds of a pass of 1 to ``most`` rows after ``context`` tokens, the numbers of rows in turn."""
    if not runner.kv.allocate("timing", context + most):
        raise SystemExit(f"no room for {context + most} tokens")
    for start in range(0, context, 256):
        runner.forward([Chunk("timing", [100] * min(256, context - start), start, num_logits=1)])
    times: list[list[float]] = [[] for _ in range(most)]
    for _ in range(repeats):
        for rows in range(1, most + 1):
            begin = time.perf_counter()
            runner.forward([Chunk("timing", [100 + row for row in range(rows)], context, num_logits=rows)])
            times[rows - 1].append(time.perf_counter() - begin)
    runner.kv.free("timing")
    # More rows never take less: a dip is noise.
    medians = [statistics.median(each) for each in times]
    return [max(medians[: rows + 1]) for rows in range(most)]


def prompts_of(llm: LLM, tokens: int, turns: int) -> dict[str, list[list[int]]]:
    """Prompts by workload, of each conversation the first ``turns``."""
    made = {
        name: [prompt for one in conversations for prompt in retrieval.prompts_of(llm, one[: 2 * turns], tokens)]
        for name, conversations in retrieval.workloads(llm).items()
    }
    return made | {"completion": [list(llm.tokenizer.encode(text)) for text in COMPLETIONS]}


def record(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> tuple[Recorder, Counter[int], int]:
    """Run the prompts one by one: the model's rounds, the target's passes by rows, the tokens made in them."""
    speculator = llm.engine.speculator
    recorder: Any = Recorder(speculator.model)
    speculator.model = extended(recorder)
    passes: Counter[int] = Counter()
    made = 0
    for prompt in prompts:
        (output,) = llm.generate([prompt], params)
        stats = output.metrics.speculative_decoding
        passes.update(1 + drafted for drafted in stats.per_step_drafted)
        made += stats.num_steps + stats.num_accepted_draft_tokens
    speculator.model = recorder.inner
    return recorder, passes, made


def priced(recorder: Recorder, passes: Counter[int], made: int, draft: list[float], target: list[float]) -> Any:
    """Counts of today's rounds and of each rule's, and what they take."""

    def seconds(rows: Counter[int], prices: list[float]) -> float:
        return sum(count * prices[min(each, len(prices)) - 1] for each, count in rows.items())

    today = Counter({1: sum(len(drafts) for _, drafts in recorder.rounds)})
    verifying = seconds(passes, target)
    entry: dict[str, Any] = {
        "tokens": made,
        "target_passes": passes.total(),
        "rounds": len(recorder.rounds),
        "draft_passes": today.total(),
        "drafting_share": seconds(today, draft) / (seconds(today, draft) + verifying),
        "rules": {},
    }
    for rule in RULES:
        rows: Counter[int] = Counter()
        for context, drafts in recorder.rounds:
            rows.update(passes_of(context, drafts, rule))
        saved = seconds(today, draft) - seconds(rows, draft)
        entry["rules"][rule] = {
            "draft_passes": rows.total(),
            "mean_rows": sum(each * count for each, count in rows.items()) / max(1, rows.total()),
            "drafting_saved": saved / max(seconds(today, draft), 1e-9),
            "end_to_end_saved": saved / (seconds(today, draft) + verifying),
        }
    return entry


def main() -> int:
    """Run, count, time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--draft-model", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--distributions", default="greedy,seeded at 0.8")
    parser.add_argument("--workloads", default="editing,chat,records,completion")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=4, help="of the conversation")
    parser.add_argument("--context", type=int, default=600, help="tokens before the passes that are timed")
    parser.add_argument("--repeats", type=int, default=7, help="of the timing")
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    distributions = {
        "greedy": SamplingParams(temperature=0.0, max_tokens=arguments.tokens),
        "seeded at 0.8": SamplingParams(temperature=0.8, seed=7, max_tokens=arguments.tokens),
    }
    prompts: dict[str, list[list[int]]] = {}
    draft_seconds: list[float] = []
    target_seconds: list[float] = []
    report: dict[str, Any] = {"arms": {}}
    for arm in arguments.arms.split(","):
        keys = ARMS[arm]
        draft = {"model": arguments.draft_model, "quantization": "int4", "draft_vocab_size": 32768}
        llm = LLM(
            arguments.model,
            speculative_config={**draft, **keys, "suffix_cache_tokens": 0},
            max_model_len=4096,
            max_num_seqs=2,
        )
        prompts = prompts or prompts_of(llm, arguments.tokens, arguments.turns)
        if not draft_seconds:
            model: Any = llm.engine.speculator.model
            runner = model._passes._runner
            draft_seconds = pass_seconds(runner, MOST_ROWS, arguments.context, arguments.repeats)
            target_seconds = pass_seconds(llm.engine.runner, MOST_ROWS, arguments.context, arguments.repeats)
            report["draft_pass_ms"] = [1e3 * each for each in draft_seconds]
            report["target_pass_ms"] = [1e3 * each for each in target_seconds]
        for temperature, workload in itertools.product(
            arguments.distributions.split(","), arguments.workloads.split(",")
        ):
            params, asked = distributions[temperature], prompts[workload]
            recorder, passes, made = record(llm, asked, params)
            entry = priced(recorder, passes, made, draft_seconds, target_seconds)
            report["arms"].setdefault(arm, {}).setdefault(temperature, {})[workload] = entry
            saved = {rule: f"{each['end_to_end_saved']:+.1%}" for rule, each in entry["rules"].items()}
            print(
                f"{arm:16s} {temperature:24s} {workload:10s} {made} tokens in {passes.total()} passes, "
                f"{entry['rounds']} rounds of drafts taking {entry['drafting_share']:.0%}; saved end to end: {saved}",
                file=sys.stderr,
                flush=True,
            )
        del llm
        report |= environment(vars(arguments))
        if arguments.json != "-":  # after each arm, since all of them take long
            write_json(report, arguments.json)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
