"""What masks of structured outputs cost: ``python -m benchmarks.grammar [--model M ...]``.

For each vocabulary and grammar: the first compilation and one that is kept; along an answer that the model gave, the
time to move one token on and mask that row (``next_us``), to take drafts back, follow K others and mask K + 1 rows
(``drafted_us``, for one row), and the mask alone (``mask_us``). Then decode steps of greedy requests with and
without the grammar, which take turns: medians, whole and outside the forward pass. The last line of
stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.steps import timed_steps

from outrider import LLM, SamplingParams, StructuredOutputs
from outrider.cli._report import environment, write_json
from outrider.sampling.grammar import GrammarCompiler

PROMPT = "Describe the city of Paris."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "inhabitants": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "kind": {"enum": ["capital", "town", "village"]},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "inhabitants", "kind", "sights"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "json schema": {"json": PERSON},
    "json object": {"json_object": True},
    "regex": {"regex": r"[A-Z][a-z ]{5,60}\. Founded in [0-9]{3,4}\."},
    "lark": {"grammar": 'start: term (" + " term)*\nterm: /[0-9]{1,6}/ | "(" start ")"'},
    "choice": {"choice": ["capital", "town", "village"]},
}


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compilation(llm: LLM, wanted: StructuredOutputs) -> dict[str, float]:
    """Milliseconds of a first compilation once the vocabulary is ready, of one that is kept, and of the vocabulary.

    The vocabulary's include a trivial grammar's.
    """
    first, kept, vocabulary = [], [], []
    ends = llm.tokenizer.eos_token_ids
    for _ in range(5):
        compiler = GrammarCompiler(llm.tokenizer.backend.to_str, llm.engine.vocab_size, ends)
        with_vocabulary = seconds(lambda: compiler.grammar(StructuredOutputs(regex="a")))  # noqa: B023
        vocabulary.append(with_vocabulary)
        first.append(seconds(lambda: compiler.grammar(wanted)))  # noqa: B023
        kept.append(seconds(lambda: compiler.grammar(wanted)))  # noqa: B023
    columns = {"compile_ms": first, "kept_ms": kept, "vocabulary_ms": vocabulary}
    return {name: 1e3 * statistics.median(column) for name, column in columns.items()}


def rows(llm: LLM, wanted: StructuredOutputs, answer: tuple[int, ...], k: int) -> dict[str, float]:
    """Microseconds for a row along ``answer``; medians, and for single rows the slowest too."""
    compiler = GrammarCompiler(llm.tokenizer.backend.to_str, llm.engine.vocab_size, llm.tokenizer.eos_token_ids)
    following, drafted, masks = [], [], []
    for _ in range(3):
        grammar = compiler.grammar(wanted)
        speculative = compiler.grammar(wanted)
        matcher = compiler.grammar(wanted)._matcher
        for place in range(len(answer)):
            before, ahead = answer[:place], answer[place : place + k]
            following.append(seconds(lambda: grammar.allowed(before)))  # noqa: B023
            masks.append(seconds(matcher.compute_logit_bias))
            matcher.try_consume_tokens([answer[place]])
            speculative.allowed(before)

            def block() -> None:
                for count in range(len(ahead) + 1):  # noqa: B023
                    speculative.allowed(before, ahead[:count])  # noqa: B023

            drafted.append(seconds(block) / (len(ahead) + 1))
    columns = {"next_us": following, "drafted_us": drafted, "mask_us": masks}
    report = {name: 1e6 * statistics.median(column) for name, column in columns.items()}
    return {**report, "next_max_us": 1e6 * max(following)}


def steps(llm: LLM, params: SamplingParams) -> list[tuple[float, float]]:
    """(seconds, seconds outside the forward pass) of every decode step."""
    return [(step.whole, step.whole - step.inside) for step in timed_steps(llm, PROMPT, params)][1:]


def measure(llm: LLM, tokens: int, rounds: int, k: int) -> dict[str, dict[str, float]]:
    """All figures of one model, by grammar."""
    report: dict[str, dict[str, float]] = {}
    for name, keys in GRAMMARS.items():
        wanted = StructuredOutputs(**keys)
        params = SamplingParams(temperature=0.0, max_tokens=tokens, structured_outputs=wanted)
        (output,) = llm.generate([PROMPT], params)
        answer = output.outputs[0].token_ids
        free = SamplingParams(temperature=0.0, max_tokens=len(answer), ignore_eos=True)
        with_grammar, without = list[tuple[float, float]](), list[tuple[float, float]]()
        for _ in range(rounds):
            with_grammar += steps(llm, params)
            without += steps(llm, free)
        report[name] = {"tokens": len(answer), **compilation(llm, wanted), **rows(llm, wanted, answer, k)}
        for arm, samples in (("", with_grammar), ("free_", without)):
            if samples:
                step, outside = (1e3 * statistics.median(column) for column in zip(*samples, strict=True))
                report[name] |= {f"{arm}step_ms": step, f"{arm}outside_ms": outside}
    return report


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="repeatable; SmolLM2 135M and Qwen2.5-Coder 0.5B without")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    models: dict[str, Any] = {}
    for alias in arguments.model or ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"]:
        off = {"num_speculative_tokens": 0}
        llm = LLM(alias, speculative_config={"method": "ngram", **off}, kv_cache_memory=128 << 20)
        grammars = measure(llm, arguments.tokens, arguments.rounds, arguments.k)
        models[alias] = {"vocab_size": llm.engine.vocab_size, "grammars": grammars}
        for name, figures in grammars.items():
            print(f"{alias:28s} {name:12s} {figures}", file=sys.stderr)
    report = {"models": models, **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
