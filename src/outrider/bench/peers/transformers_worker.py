"""transformers' own ``generate``: plain, with prompt lookup, and assisted. Imports nothing of Outrider.

A ``.gguf`` file is dequantized by transformers, so its weights take more memory and bandwidth than the file does.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import transformers

PROMPT_LOOKUP_TOKENS = 10
"""The value that transformers' documentation uses."""


class FirstToken:
    """A streamer that notes when the first new tokens come, and how many came together."""

    def __init__(self) -> None:
        self.calls = 0
        self.time = 0.0
        self.tokens = 0

    def put(self, value: torch.Tensor) -> None:
        """The first call brings the prompt, the second the first tokens made."""
        self.calls += 1
        if self.calls == 2:
            self.time, self.tokens = time.perf_counter(), int(value.numel())

    def end(self) -> None:
        """Nothing is held back."""


class Engine:
    """One model, and a draft model if one was given."""

    def load(
        self, model: str, threads: int, max_model_len: int, draft_model: str | None, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Load a folder or a ``.gguf`` file in bfloat16 where the processor has instructions for it, else float32."""
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        wanted = settings.get("dtype", "auto")
        if wanted == "auto":
            wanted = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
        self._model = self._load(model, wanted)
        self._draft = None if draft_model is None else self._load(draft_model, wanted)
        self._held: list[int] = []  # the context that self._past is of
        self._past: Any = None
        modes = ["", "lookup"] + (["assisted"] if self._draft is not None else [])
        return {"version": f"transformers {transformers.__version__}", "detail": wanted, "modes": modes}

    def generate(self, token_ids: list[int], max_tokens: int, end_token_ids: list[int], mode: str) -> dict[str, Any]:
        """Greedy tokens by ``model.generate``."""
        how: dict[str, Any] = {}
        if mode == "lookup":
            how["prompt_lookup_num_tokens"] = PROMPT_LOOKUP_TOKENS
        elif mode == "assisted":
            how["assistant_model"] = self._draft
        seen = FirstToken()
        ids = torch.tensor([token_ids])
        start = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=end_token_ids or None,
                pad_token_id=end_token_ids[0] if end_token_ids else 0,
                streamer=seen,
                **how,
            )
        end = time.perf_counter()
        made = output[0, len(token_ids) :].tolist()
        rest = len(made) - seen.tokens
        return {
            "token_ids": made,
            "first_s": seen.time - start,
            "rest_s": end - seen.time if rest else 0.0,
            "rest_tokens": rest,
        }

    def forward(self, context: list[int], rows: list[int], count: int) -> float:
        """One pass, after which the keys and values of its rows are cropped away."""
        with torch.inference_mode():
            if self._held != context:
                self._past = self._model(torch.tensor([context]), use_cache=True, logits_to_keep=1).past_key_values
                self._held = context
            ids = torch.tensor([rows[:count]])
            start = time.perf_counter()
            self._model(ids, past_key_values=self._past, use_cache=True)
            taken = time.perf_counter() - start
            self._past.crop(-count)
        return taken

    @staticmethod
    def _load(model: str, dtype: str) -> Any:
        kind = getattr(torch, dtype)
        if model.endswith(".gguf"):
            folder, name = os.path.split(model)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=kind)
        else:
            loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=kind)
        loaded.eval()
        loaded.generation_config.eos_token_id = None
        return loaded
