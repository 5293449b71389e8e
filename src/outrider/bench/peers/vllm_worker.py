"""vLLM's engine on the CPU: plain, with its n-gram drafter, and with a draft model. Imports nothing of Outrider.

vLLM fixes speculation when it loads, so each mode runs in a process of its own; ``settings["mode"]`` says which. It
reads folders: a ``.gguf`` file is written anew as one, its weights dequantized by transformers to bfloat16. It offers
no pass over chosen rows, so forward times are not measured.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import itertools
import os
import tempfile
import time
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

import vllm

DRAFT_TOKENS = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFT_TOKENS, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


class Engine:
    """One model, one sequence, one mode."""

    def load(
        self, model: str, threads: int, max_model_len: int, draft_model: str | None, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Load a folder or a ``.gguf`` file in bfloat16. Threads are those of the process, as vLLM binds them."""
        mode = settings["mode"]
        self._folders: list[tempfile.TemporaryDirectory[str]] = []
        speculative: dict[str, Any] | None = None
        if mode == "ngram":
            speculative = NGRAM
        elif mode:
            speculative = {"model": self._folder(str(draft_model)), "num_speculative_tokens": DRAFT_TOKENS}
        self._engine = vllm.LLM(
            self._folder(model),
            dtype="bfloat16",
            max_model_len=max_model_len,
            max_num_seqs=1,
            enable_prefix_caching=False,
            speculative_config=speculative,
        ).llm_engine
        self._ids = itertools.count()
        return {"version": f"vllm {vllm.__version__}", "detail": "bfloat16", "modes": [mode]}

    def generate(self, token_ids: list[int], max_tokens: int, end_token_ids: list[int], mode: str) -> dict[str, Any]:
        """Greedy tokens, the engine stepped by hand to see when each comes."""
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, stop_token_ids=end_token_ids, detokenize=False
        )
        start = time.perf_counter()
        self._engine.add_request(str(next(self._ids)), {"prompt_token_ids": token_ids}, params)
        made: list[int] = []
        first, first_count = start, 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                made = list(output.outputs[0].token_ids)
                if made and not first_count:
                    first, first_count = time.perf_counter(), len(made)
        end = time.perf_counter()
        rest = len(made) - first_count
        return {
            "token_ids": made,
            "first_s": first - start,
            "rest_s": end - first if rest else 0.0,
            "rest_tokens": rest,
        }

    def forward(self, context: list[int], rows: list[int], count: int) -> float | None:
        """Not offered."""
        return None

    def _folder(self, model: str) -> str:
        if not model.endswith(".gguf"):
            return model
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        parent, name = os.path.split(model)
        made = tempfile.TemporaryDirectory()
        self._folders.append(made)
        read = AutoModelForCausalLM.from_pretrained(parent, gguf_file=name, dtype=torch.bfloat16)
        if hasattr(read.config, "quantization_config"):  # what is written is not quantized any more
            del read.config.quantization_config
        plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
        plain.load_state_dict(read.state_dict())
        plain.tie_weights()
        plain.save_pretrained(made.name)
        AutoTokenizer.from_pretrained(parent, gguf_file=name).save_pretrained(made.name)
        return made.name
