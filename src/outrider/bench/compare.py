"""Runs every engine on the same tokens, greedy and interleaved, each in a process of its own.

The order is turned by one place with every prompt and repeat, so that no engine always follows the same one. What the
figures mean is in ``comparison.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from outrider.bench.comparison import Comparison, EngineFigures, Missing, Run
from outrider.bench.engines import EngineSpec
from outrider.bench.prompts import BenchPrompt, check_lengths, stretch
from outrider.bench.worker import MissingEngineError, Worker, WorkerError

PROMPT_TOKENS = 512
CONTEXT_TOKENS = 256
ROWS = (1, 2, 4, 8)
FORWARD_TIMES = 5
SPARE_TOKENS = 64
"""Room in the context beyond what is generated, for engines that draft past the end."""
LOAD_SECONDS = 1800.0
RUN_SECONDS = 1800.0
SETTLE_SECONDS = 0.02
"""Wait between two engines, after which the first one's threads no longer spin."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is run.

    model          file or folder, for engines that know no aliases
    longest        tokens that the model can hold
    end_token_ids  where a text ends
    prompts        tokens already
    repeats        rounds over all prompts
    """

    model: str
    longest: int
    end_token_ids: tuple[int, ...]
    prompts: Sequence[BenchPrompt]
    max_tokens: int
    repeats: int
    threads: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt whose processing is timed."""
        return min(PROMPT_TOKENS, self.longest - 2)

    @property
    def context_tokens(self) -> int:
        """Tokens before the rows whose forward pass is timed."""
        return max(1, min(CONTEXT_TOKENS, self.longest - max(ROWS)))

    @property
    def rows(self) -> tuple[int, ...]:
        """Row counts that fit behind the context."""
        return tuple(count for count in ROWS if self.context_tokens + count <= self.longest)

    @property
    def max_model_len(self) -> int:
        """Tokens that every engine must hold, and is given room for."""
        longest = max(len(prompt.token_ids) for prompt in self.prompts) + self.max_tokens
        needed = max(longest, self.prompt_tokens + 1, self.context_tokens + max(self.rows))
        return min(self.longest, needed + SPARE_TOKENS)


@dataclass
class _Contestant:
    spec: EngineSpec
    worker: Worker
    figures: EngineFigures
    modes: list[str] = field(default_factory=list)
    failed: bool = False


def compare(plan: Plan, specs: Sequence[EngineSpec], report: Report) -> Comparison:
    """Start all engines, measure, end them.

    A peer that is not installed or fails is named in the result and the others go on. Raises ``WorkerError`` if
    Outrider itself fails, and ``InvalidRequestError`` if a prompt does not fit.
    """
    check_lengths(plan.prompts, plan.max_tokens, plan.longest)
    result = Comparison(
        prompts=[prompt.name for prompt in plan.prompts],
        prompt_tokens=plan.prompt_tokens,
        context_tokens=plan.context_tokens,
        rows=list(plan.rows),
    )
    race = _Race(plan, result, report)
    try:
        for spec in specs:
            race.start(spec)
        race.decode()
        race.prompts()
        race.forward()
        race.memory()
    finally:
        for contestant in race.contestants:
            contestant.worker.close()
    return result


class _Race:
    """The engines that run, and the result that fills."""

    def __init__(self, plan: Plan, result: Comparison, report: Report) -> None:
        self.plan = plan
        self.result = result
        self.report = report
        self.contestants: list[_Contestant] = []
        self.decoded = False

    def start(self, spec: EngineSpec) -> None:
        """Start and load one engine, and let each mode generate once so that every weight has been touched."""
        self.report(f"loading {spec.title}")
        begin = time.perf_counter()
        try:
            worker = Worker(spec.name, spec.command, spec.env)
        except MissingEngineError as error:
            self._lose(spec, error)
            return
        contestant = _Contestant(spec, worker, EngineFigures(spec.name, peer=spec.peer))
        self.contestants.append(contestant)
        loaded = self._ask(
            contestant,
            "load",
            model=self.plan.model,
            threads=self.plan.threads,
            max_model_len=self.plan.max_model_len,
            draft_model=spec.draft_model,
            settings=spec.settings or {},
        )
        if loaded is None:
            return
        figures = contestant.figures
        figures.version, figures.detail = loaded["version"], loaded["detail"]
        figures.load_s = time.perf_counter() - begin
        figures.measured_passes = spec.measure_passes
        contestant.modes = [mode for mode in loaded["modes"] if spec.modes is None or mode in spec.modes]
        figures.labels = [spec.label(mode) for mode in contestant.modes]
        self.result.engines.append(figures)
        for mode in contestant.modes:
            self._generate(contestant, mode, self.plan.prompts[0].token_ids, min(8, self.plan.max_tokens))

    def decode(self) -> None:
        """Generate from every prompt with every mode of every engine, round after round."""
        for repeat in range(self.plan.repeats):
            for number, prompt in enumerate(self.plan.prompts):
                turn = [(one, mode) for one in self.contestants for mode in one.modes]
                shift = (repeat + number) % len(turn)
                for contestant, mode in turn[shift:] + turn[:shift]:
                    label = contestant.spec.label(mode)
                    self.report(f"round {repeat + 1} of {self.plan.repeats}, prompt {prompt.name}: {label}")
                    reply = self._generate(contestant, mode, prompt.token_ids, self.plan.max_tokens)
                    if reply is not None:
                        self.result.runs.append(Run.from_reply(label, prompt.name, repeat, reply))
        self.decoded = True

    def prompts(self) -> None:
        """Time to the first token of a long prompt, another one in each round."""
        for repeat in range(self.plan.repeats):
            tokens = stretch(self.plan.prompts, self.plan.prompt_tokens, shift=1 + 7 * repeat)
            for contestant in self._measured(repeat):
                self.report(f"round {repeat + 1} of {self.plan.repeats}, long prompt: {contestant.spec.name}")
                reply = self._generate(contestant, contestant.modes[0], tokens, 1)
                if reply is not None:
                    contestant.figures.prompt_rates[repeat] = len(tokens) / reply["first_s"]

    def forward(self) -> None:
        """Passes over 1, 2, 4, 8 rows on the same context."""
        plan = self.plan
        tokens = stretch(plan.prompts, plan.context_tokens + max(plan.rows))
        for repeat in range(plan.repeats):
            for contestant in self._measured(repeat):
                self.report(f"round {repeat + 1} of {plan.repeats}, rows: {contestant.spec.name}")
                reply = self._ask(
                    contestant,
                    "forward",
                    context=tokens[: plan.context_tokens],
                    rows=tokens[plan.context_tokens :],
                    counts=list(plan.rows),
                    times=FORWARD_TIMES,
                )
                for count, seconds in ({} if reply is None else reply["seconds"]).items():
                    samples = contestant.figures.forward_s.setdefault(int(count), {})
                    samples.update({(repeat, turn): value for turn, value in enumerate(seconds)})

    def memory(self) -> None:
        """What each process took at its peak, and takes now."""
        for contestant in self._running():
            reply = self._ask(contestant, "memory")
            if reply is not None:
                contestant.figures.peak_bytes = reply["peak_bytes"]
                contestant.figures.resident_bytes = reply["resident_bytes"]

    def _running(self) -> list[_Contestant]:
        return [one for one in self.contestants if not one.failed]

    def _measured(self, repeat: int) -> list[_Contestant]:
        """Those whose passes are timed, begun with another one in each round."""
        some = [one for one in self._running() if one.spec.measure_passes]
        shift = repeat % len(some)
        return some[shift:] + some[:shift]

    def _generate(
        self, contestant: _Contestant, mode: str, token_ids: Sequence[int], max_tokens: int
    ) -> dict[str, Any] | None:
        return self._ask(
            contestant,
            "generate",
            token_ids=list(token_ids),
            max_tokens=max_tokens,
            end_token_ids=list(self.plan.end_token_ids),
            mode=mode,
        )

    def _ask(self, contestant: _Contestant, do: str, **arguments: Any) -> dict[str, Any] | None:
        """Ask one engine while the others wait; None if it has failed, now or before."""
        if contestant.failed:
            return None
        time.sleep(SETTLE_SECONDS)
        others = [one for one in self._running() if one is not contestant]
        before = [_processor_seconds(one) for one in others]
        begin = time.perf_counter()
        try:
            reply = contestant.worker.ask(do, timeout=LOAD_SECONDS if do == "load" else RUN_SECONDS, **arguments)
        except WorkerError as error:
            if not contestant.spec.peer:
                raise
            contestant.failed, contestant.modes = True, []
            self._lose(contestant.spec, error)
            return None
        seconds = time.perf_counter() - begin
        for other, spent in zip(others, before, strict=True):
            other.figures.idle_wall_s += seconds
            other.figures.idle_processor_s += _processor_seconds(other) - spent
        return reply

    def _lose(self, spec: EngineSpec, error: WorkerError) -> None:
        """Name an engine as missing. One that fails after all texts were made keeps the figures that it has."""
        absent = isinstance(error, MissingEngineError)
        if not self.decoded:
            self.result.engines = [one for one in self.result.engines if not spec.owns(one.name, one.labels)]
        missing = Missing(spec.name if absent else spec.title, absent, str(error), spec.todo if absent else "")
        if missing not in self.result.missing:  # an engine of several processes is missing once
            self.result.missing.append(missing)


def _processor_seconds(contestant: _Contestant) -> float:
    """Processor time that a worker has used so far; 0.0 once it has ended."""
    try:
        times = psutil.Process(contestant.worker.pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
