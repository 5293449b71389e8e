"""OpenVINO GenAI's ``LLMPipeline``, which reads ``.gguf`` files and OpenVINO folders. Imports nothing of Outrider.

The pipeline offers no pass over chosen rows, so forward times are not measured.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai


class Notes(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Notes when tokens come."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def write(self, token: Any) -> Any:
        """Called with each token, or several."""
        self.times.append(time.perf_counter())
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Nothing is held back."""


class Engine:
    """One model, one sequence."""

    def load(
        self, model: str, threads: int, max_model_len: int, draft_model: str | None, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Load a model; a draft model is not used."""
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
        return {"version": f"openvino {openvino.__version__}", "detail": "LLMPipeline", "modes": [""]}

    def generate(self, token_ids: list[int], max_tokens: int, end_token_ids: list[int], mode: str) -> dict[str, Any]:
        """Greedy tokens."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.apply_chat_template = False
        config.stop_token_ids = set(end_token_ids)
        ids = np.array([token_ids], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        start = time.perf_counter()
        notes = Notes()
        output = self._pipeline.generate(inputs, config, notes)
        made = list(output.tokens[0])
        return {
            "token_ids": made,
            "first_s": notes.times[0] - start,
            "rest_s": notes.times[-1] - notes.times[0],
            "rest_tokens": len(made) - 1,
        }

    def forward(self, context: list[int], rows: list[int], count: int) -> float | None:
        """Not offered by the pipeline."""
        return None
