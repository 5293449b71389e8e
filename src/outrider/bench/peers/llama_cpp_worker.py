"""llama.cpp through llama-cpp-python's low-level functions, with llama.cpp's own defaults. Imports nothing of Outrider.

The decode loop is llama.cpp's: one ``llama_decode`` per token and the argmax of its logits, without the sampling and
bookkeeping of the Python class, which would cost llama.cpp time that is not its own.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np

BATCH = 512
"""Prompt tokens per ``llama_decode``."""


class Engine:
    """One model, one sequence."""

    def load(
        self, model: str, threads: int, max_model_len: int, draft_model: str | None, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Load a ``.gguf`` file; a draft model is not used. Raises ``ValueError`` for anything else."""
        if not model.endswith(".gguf"):
            raise ValueError("llama.cpp reads .gguf files only")
        llama_cpp.llama_backend_init()
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {model!r}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = max_model_len
        context.n_batch = context.n_ubatch = BATCH
        context.n_threads = context.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise ValueError(f"llama.cpp cannot make a context of {max_model_len} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._held: list[int] = []  # the context whose keys and values are in the cache
        description = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self._model, description, len(description))
        return {
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "detail": description.value.decode(errors="replace"),
            "modes": [""],
        }

    def generate(self, token_ids: list[int], max_tokens: int, end_token_ids: list[int], mode: str) -> dict[str, Any]:
        """Greedy tokens, one pass each."""
        start = time.perf_counter()
        self._held = []
        llama_cpp.llama_memory_clear(self._memory, False)
        self._prompt(token_ids)
        made = [self._greedy()]
        first = time.perf_counter()
        while len(made) < max_tokens and made[-1] not in end_token_ids:
            self._decode(made[-1:], len(token_ids) + len(made) - 1, scored=1)
            made.append(self._greedy())
        return {
            "token_ids": made,
            "first_s": first - start,
            "rest_s": time.perf_counter() - first,
            "rest_tokens": len(made) - 1,
        }

    def forward(self, context: list[int], rows: list[int], count: int) -> float:
        """One pass, after which the keys and values of its rows are dropped."""
        if self._held != context:
            llama_cpp.llama_memory_clear(self._memory, False)
            self._prompt(context)
            self._held = context
        start = time.perf_counter()
        self._decode(rows[:count], len(context), scored=count)
        taken = time.perf_counter() - start
        llama_cpp.llama_memory_seq_rm(self._memory, 0, len(context), -1)
        return taken

    def _prompt(self, token_ids: list[int]) -> None:
        for place in range(0, len(token_ids), BATCH):
            chunk = token_ids[place : place + BATCH]
            self._decode(chunk, place, scored=int(place + BATCH >= len(token_ids)))

    def _decode(self, token_ids: list[int], position: int, scored: int) -> None:
        """One pass; the last ``scored`` tokens get logits."""
        batch = self._batch
        batch.n_tokens = len(token_ids)
        for i, token_id in enumerate(token_ids):
            batch.token[i] = token_id
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= len(token_ids) - scored
        code = llama_cpp.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} for {len(token_ids)} tokens at {position}")
        llama_cpp.llama_synchronize(self._context)

    def _greedy(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab,)).argmax())
