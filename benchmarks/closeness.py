"""How close quantized engines come to the float32 model: ``python benchmarks/closeness.py [--model M] [--json P]``.

Logits of a fixed text under the dequantized float32 reference, under Outrider's kernels and, where ``make peers`` has
been run, under llama.cpp, all from the same GGUF file. Mean KL(reference || engine) per token, and how often the most
probable token agrees. The last line of stdout is the result as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cli._report import environment, write_json
from outrider.models.base import CausalModel
from outrider.models.loader.load import OpenModel, open_model
from outrider.models.native import NativeDecoder
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.sampling.logprobs import log_softmax
from outrider.torch_backend.decoder import load_decoder

Logits = NDArray[np.float32]
TEXT = """The lighthouse stood at the end of a long spit of sand, and for a hundred years it had warned ships away from
the rocks. When the last keeper retired in 1987 the lamp was made automatic, and the house was sold to a painter from
the city. She came each summer with her two children. In the morning they walked along the shore to buy bread; in the
evening, when the fog came in, they listened to the horn and counted the seconds between its calls. Nobody knows how
the fire began. By the time the fire brigade had crossed the bay, the roof was gone, and only the tower was left.

def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("mean of an empty list")
    return sum(values) / len(values)

Water boils at 100 degrees Celsius at sea level, but at 68 degrees on the summit of Mount Everest, because the air
pressure there is about a third of what it is at the coast. Cooking therefore takes longer in the mountains.
"""
LLAMA_CPP = """
import json, sys
import numpy as np
from llama_cpp import Llama
path, ids, out = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3]
llm = Llama(path, n_ctx=len(ids) + 8, n_batch=len(ids) + 8, n_ubatch=len(ids) + 8, logits_all=True, verbose=False)
llm.eval(ids)
np.save(out, np.array(llm.scores[: len(ids)], dtype=np.float32))
"""


def logits_of(model: CausalModel, ids: list[int]) -> Logits:
    """Logits [len(ids), vocab] of every position, in one pass."""
    runner = ModelRunner(model, num_blocks=len(ids) // 16 + 1, block_size=16)
    runner.kv.allocate("text", len(ids))
    return runner.forward([Chunk("text", ids, 0, num_logits=len(ids))]).logits[0].rows(slice(None))


def llama_cpp_logits(path: Path, ids: list[int]) -> Logits | None:
    """The same from llama.cpp, None if it is not installed."""
    python = os.environ.get("OUTRIDER_PEERS_PYTHON", ".venv-peers/bin/python")
    if not Path(python).exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "ids.json"), Path(folder, "logits.npy")
        given.write_text(json.dumps(ids), encoding="utf-8")
        command = [python, "-c", LLAMA_CPP, str(path), str(given), str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"llama.cpp failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        loaded: Logits = np.load(result)
        return loaded


def compare(exact: Logits, other: Logits) -> dict[str, float]:
    """Mean and largest KL(exact || other) per token in nats, and the share of equal most probable tokens."""
    p, q = (np.array([log_softmax(row.astype(np.float64)) for row in x]) for x in (exact, other))
    divergence = (np.exp(p) * (p - q)).sum(-1)
    return {
        "mean_kl": float(divergence.mean()),
        "max_kl": float(divergence.max()),
        "top1_agreement": float((p.argmax(-1) == q.argmax(-1)).mean()),
    }


def engines(opened: OpenModel, ids: list[int]) -> dict[str, Logits | None]:
    """Each engine's logits; None for one that is not there."""
    packed = opened.packed_weights()
    return {
        "outrider": logits_of(NativeDecoder(opened.config, packed), ids),
        "outrider, float32 KV": logits_of(NativeDecoder(opened.config, packed, kv_dtype="float32"), ids),
        "llama.cpp": llama_cpp_logits(opened.source.path, ids),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="alias or .gguf file")
    parser.add_argument("--json", default="-", help="write the result here too")
    arguments = parser.parse_args()
    opened = open_model(arguments.model)
    ids = opened.tokenizer.encode(TEXT)
    exact = logits_of(load_decoder(opened), ids)
    found: dict[str, Any] = {}
    for name, logits in engines(opened, ids).items():
        found[name] = "missing" if logits is None else compare(exact, logits)
        print(f"{name:22s} {found[name]}", file=sys.stderr)
    report = {"tokens": len(ids), "engines": found, **environment(vars(arguments))}
    if arguments.json != "-":
        write_json(report, arguments.json)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
