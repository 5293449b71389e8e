"""What works without torch and transformers, and what is said where they are needed: in processes that cannot import
them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import native
from outrider.engine.backends import resolve_device
from outrider.errors import ConfigError

WITHOUT_TORCH = "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
SAID = """
from outrider.errors import UserError
try:
    {call}
except UserError as error:
    print(type(error).__name__, error)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_module_but_those_about_torch_can_be_imported() -> None:
    code = """
import importlib, pkgutil, outrider
names = [each.name for each in pkgutil.walk_packages(outrider.__path__, "outrider.", onerror=lambda name: None)]
ours = [name for name in names if not name.startswith(("outrider.torch_backend", "outrider.bench.peers"))]
for name in ours:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(ours))
"""
    assert int(run(WITHOUT_TORCH + code)) > 100


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("resolve_device('auto')", ""),
        ("resolve_device('cpu')", ""),
        ("resolve_device('cuda')", "device='cuda' needs torch, which is not installed; pip install 'outrider[torch]'"),
        ("resolve_device('cuda:1')", "device='cuda:1' needs torch, which is not installed"),
        ("resolve_device('tpu')", "device='tpu' is not supported; use 'auto', 'cpu' or 'cuda'"),
    ],
)
def test_devices_without_torch(call: str, said: str) -> None:
    code = "from outrider.engine.backends import resolve_device\n" + SAID.format(call=call)
    assert run(WITHOUT_TORCH + code).removeprefix("ConfigError ").startswith(said)
    assert bool(run(WITHOUT_TORCH + code)) == bool(said)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "CPU", "cpu:0"])
def test_a_device_that_there_is_not_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"device={name!r} is not supported; use 'auto', 'cpu' or 'cuda'"):
        resolve_device(name)


def test_the_reference_names_the_extra(hf_folder: Callable[..., Any], tmp_path: Path) -> None:
    hf_folder(tmp_path)
    code = f"from outrider import LLM\n{SAID}".format(call=f"LLM({str(tmp_path)!r}, backend='reference')")
    expected = "ConfigError backend='reference' needs torch, which is not installed; pip install 'outrider[torch]'"
    assert run(WITHOUT_TORCH + code) == expected


def test_older_tokenizers_name_the_extra(hf_folder: Callable[..., Any], tmp_path: Path) -> None:
    hf_folder(tmp_path, "qwen2")
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    code = f"from outrider import LLM\n{SAID}".format(call=f"LLM({str(tmp_path)!r})")
    said = run(WITHOUT_TORCH + code)
    assert said.startswith(f"ConfigError the tokenizer of {str(tmp_path)!r}, which has no tokenizer.json, needs torch")


@pytest.mark.skipif(not native.available(), reason=native.describe())
@pytest.mark.parametrize("blocked", [False, True], ids=["with torch", "without torch"])
def test_a_cpu_gets_from_the_file_to_tokens_without_torch(
    blocked: bool, hf_folder: Callable[..., Any], tmp_path: Path
) -> None:
    hf_folder(tmp_path)
    code = f"""
from outrider import LLM, SamplingParams
llm = LLM({str(tmp_path)!r}, speculative_config={{"model": {str(tmp_path)!r}, "adaptive": False}}, max_model_len=64)
(output,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
import sys
loaded = {{name.partition(".")[0] for name, module in sys.modules.items() if module}}
assert not loaded & {{"torch", "transformers"}}
print(len(output.outputs[0].token_ids), output.metrics.speculative_decoding.draft_acceptance_rate)
"""
    assert run((WITHOUT_TORCH if blocked else "") + code) == "9 1.0"
