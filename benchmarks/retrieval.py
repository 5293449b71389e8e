"""Drafting by retrieval on three workloads: ``python benchmarks/retrieval.py [--model M] [--methods ngram:7,auto]``.

    editing   a file of 150 lines to write again with one function renamed
    chat      a conversation of several turns, each turn's whole history as the prompt; played twice
    records   40 JSON records from a template

Greedy. Every prompt runs with speculation off and with each method in turn, the order turning with every prompt; a
method's ratio is the median over prompts and repeats of its decode rate over that of speculation off. ``method:K``
drafts K tokens wherever there are drafts, a method alone as many as pay. No method remembers earlier answers, and no
prompt is shared. All methods must give the same tokens. The last line of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from outrider import LLM, SamplingParams
from outrider.cli._report import environment, write_json

FIELDS = ("name", "price", "stock", "weight", "height", "width", "depth", "rating", "colour", "brand")
QUESTIONS = (
    "Write a Python function that reads a CSV file and returns a list of dictionaries.",
    "Now let it take the delimiter as a parameter. Give the whole function again.",
    "Add a parameter that skips empty lines. Give the whole function again.",
    "Add type hints and a docstring. Give the whole function again.",
)


def editing() -> str:
    """A module of 150 lines, and the request to write it again with one method renamed."""
    lines = ['"""Products of a shop."""', "", "", "class Product:", '    """One product."""', ""]
    for number, name in enumerate(FIELDS):
        lines += [
            f"    def get_{name}(self):",
            f'        """Return the {name} of the product."""',
            f'        value = self._data.get("{name}", {number})',
            "        if value is None:",
            f'            raise KeyError("{name} is missing")',
            "        return value",
            "",
            f"    def set_{name}(self, value):",
            f'        """Change the {name} of the product."""',
            "        if value is None:",
            f'            raise ValueError("{name} must not be empty")',
            f'        self._data["{name}"] = value',
            "        self._changed = True",
            "",
        ]
    return "\n".join(lines[:150])


def workloads(llm: LLM) -> dict[str, list[list[dict[str, str]]]]:
    """Conversations by workload; an assistant's turn of "" is filled with what the model answered."""
    edit = f"Rename the method get_price to current_price. Answer with the whole file.\n\n```python\n{editing()}\n```"
    template = '{"id": 1, "name": "Item 1", "price": 10.0, "tags": ["new", "sale"], "in_stock": true}'
    records = f"Write 40 JSON records, one per line, with ids from 1 to 40, each like this one:\n{template}"
    chat = []
    for question in QUESTIONS:
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": ""}]
    return {
        "editing": [[{"role": "user", "content": edit}]],
        "chat": [chat],
        "records": [[{"role": "user", "content": records}]],
    }


def prompts_of(llm: LLM, conversation: list[dict[str, str]], max_tokens: int) -> list[list[int]]:
    """The prompts of a conversation's turns, the model's own answers in its history."""
    prompts: list[list[int]] = []
    history: list[dict[str, str]] = []
    for message in conversation:
        if message["role"] == "assistant" and not message["content"]:
            answer = generate(llm, prompts[-1], max_tokens)
            message = {**message, "content": llm.tokenizer.decode(answer.outputs[0].token_ids)}
        history.append(message)
        if message["role"] == "user":
            text = llm.tokenizer.apply_chat_template(history)
            prompts.append(llm.tokenizer.encode(text, add_special_tokens=False))
    return prompts


def generate(llm: LLM, prompt: list[int], max_tokens: int, num_drafts: int | None = None) -> Any:
    """One greedy answer; ``num_drafts`` is K, by default the engine's."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, num_speculative_tokens=num_drafts)
    (output,) = llm.generate([prompt], params)
    return output


def rate(output: Any) -> float:
    """Tokens per second after the first one."""
    metrics, count = output.metrics, len(output.outputs[0].token_ids)
    return float((count - 1) / (metrics.finish_time - metrics.first_token_time))


def main() -> int:
    """Measure, print, write; returns 1 if a method changed the tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--methods", default="ngram:7,suffix:7,ngram:15,suffix:15,auto", help="method or method:K, ...")
    parser.add_argument("--workloads", default="editing,chat,records")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    methods: dict[str, tuple[str, int | None]] = {}
    for text in arguments.methods.split(","):
        method, _, k = text.partition(":")
        methods[text] = (method, int(k) if k else None)
    engines = {}
    for method, fixed in {(method, k is not None) for method, k in methods.values()}:
        keys: dict[str, Any] = {"method": method, "suffix_cache_tokens": 0}
        if fixed:
            most = max(k or 0 for name, k in methods.values() if name == method)
            keys |= {"num_speculative_tokens": most, "adaptive": False}
        engines[method, fixed] = LLM(
            arguments.model, speculative_config=keys, prefix_caching=False, kv_cache_memory=256 << 20
        )
    runners = {name: (engines[method, k is not None], k) for name, (method, k) in methods.items()}
    plain = next(iter(engines.values()))
    runners["off"] = (plain, 0)
    results: dict[str, Any] = {}
    identical = True
    for name, conversations in workloads(plain).items():
        if name not in arguments.workloads.split(","):
            continue
        ratios: dict[str, list[float]] = {method: [] for method in methods}
        steps: dict[str, list[tuple[int, int, int]]] = {method: [] for method in methods}
        prompts = [prompt for one in conversations for prompt in prompts_of(plain, one, arguments.tokens)]
        for repeat in range(arguments.repeats):
            for number, prompt in enumerate(prompts):
                runs: dict[str, Any] = {}
                order = ["off", *methods]
                shift = (repeat + number) % len(order)
                for method in order[shift:] + order[:shift]:
                    llm, k = runners[method]
                    runs[method] = generate(llm, prompt, arguments.tokens, k)
                for method in methods:
                    identical &= runs[method].outputs[0].token_ids == runs["off"].outputs[0].token_ids
                    ratios[method].append(rate(runs[method]) / rate(runs["off"]))
                    stats = runs[method].metrics.speculative_decoding
                    steps[method].append((stats.num_steps, stats.num_spec_steps, stats.num_accepted_draft_tokens))
        results[name] = {}
        for method in methods:
            passes, drafted, accepted = (sum(column) for column in zip(*steps[method], strict=True))
            entry = results[name][method] = {
                "ratio_to_off": statistics.median(ratios[method]),
                "ratios": ratios[method],
                "mean_acceptance_length": 1 + accepted / max(1, drafted),
                "tokens_per_pass": 1 + accepted / passes,
            }
            print(
                f"{name:8s} {method:14s} {entry['ratio_to_off']:.2f}x off, {entry['tokens_per_pass']:.2f} tokens per "
                f"pass, {entry['mean_acceptance_length']:.2f} per pass with drafts",
                file=sys.stderr,
            )
    report = {"workloads": results, "identical": identical, **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
