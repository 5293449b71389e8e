"""Every family against transformers in float32: small random models, prompts around the window, any chunking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.models.batch import ForwardBatch
from outrider.models.loader.load import open_model
from outrider.torch_backend.decoder import Decoder, load_decoder

Build = Callable[..., Any]
BLOCK = 4
GREEDY_TOKENS = 32
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LAYERS = ["full_attention", "sliding_attention"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, linear scaling": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama, llama3 scaling": ("llama", {"rope_parameters": LLAMA3}),
    "mistral, window 8": ("mistral", {}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, window above layer 1": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, window by layer": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": LAYERS[::-1]},
    ),
    "gemma3": ("gemma3", {}),
    "gemma3, scores divided by another size": ("gemma3", {"query_pre_attn_scalar": 5}),
}
LENGTHS = [1, 8, 9, 23]
"""Prompts shorter than the window of 8, as long, one longer, and several windows long."""


class Run:
    """One sequence on a paged cache whose blocks lie out of order, with rows left over before and between."""

    def __init__(self, decoder: Decoder, most: int = 64) -> None:
        self._decoder = decoder
        blocks = -(-most // BLOCK)
        self._cache = decoder.new_cache(2 * blocks + 1, BLOCK)
        for memory in (*self._cache.keys, *self._cache.values):
            memory.fill_(1e4)  # what no token has written must not be read
        self._table = np.arange(2 * blocks, 0, -2)
        self._done = 0

    def __call__(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits [n, vocab] of the next n tokens."""
        start, end = self._done, self._done + len(token_ids)
        places = np.arange(start, end)
        self._done = end
        batch = ForwardBatch(
            token_ids=np.array(token_ids),
            positions=places,
            slot_mapping=self._table[places // BLOCK] * BLOCK + places % BLOCK,
            query_start=(0, len(token_ids)),
            seq_lens=(end,),
            block_tables=self._table[None],
            logit_rows=np.arange(len(token_ids)),
        )
        logits = self._decoder.forward(batch, self._cache).logits
        return torch.from_numpy(logits.rows(slice(None)))

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self._done = length


@pytest.fixture(scope="module")
def pairs(hf_folder: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Decoder]]:
    """The model of transformers and the decoder, read from the folder that transformers wrote; made once."""
    made: dict[str, tuple[Any, Decoder]] = {}

    def get(name: str) -> tuple[Any, Decoder]:
        if name not in made:
            family, changes = MODELS[name]
            folder = tmp_path_factory.mktemp("model")
            # Weights of deviation 1 saturate the softmax, which would hide a wrong scale.
            reference = hf_folder(folder, family, deviation=0.3, **changes)
            made[name] = reference, decoder(folder)
        return made[name]

    return get


def decoder(path: Path) -> Decoder:
    return load_decoder(open_model(str(path)))


def prompt(length: int, vocab: int) -> list[int]:
    return [(7 * place * place + 11 * place + 5) % vocab for place in range(length)]


def reference_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


def reference_greedy(model: Any, token_ids: list[int]) -> list[int]:
    """Greedy tokens of transformers through its own cache, never ending early."""
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([token_ids]),
            attention_mask=torch.ones(1, len(token_ids), dtype=torch.long),
            max_new_tokens=GREEDY_TOKENS,
            min_new_tokens=GREEDY_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = ids[0, len(token_ids) :].tolist()
    return tokens


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    pairs: Callable[[str], tuple[Any, Decoder]], name: str, length: int
) -> None:
    model, ours = pairs(name)
    token_ids = prompt(length, ours.vocab_size)
    run = Run(ours)
    logits = run(token_ids)
    close(logits, reference_logits(model, token_ids))
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < GREEDY_TOKENS:
        tokens.append(int(run(tokens[-1:])[-1].argmax()))
    assert tokens == reference_greedy(model, token_ids)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", MODELS)
def test_several_tokens_at_once_are_single_steps_after_a_wrong_draft_too(
    pairs: Callable[[str], tuple[Any, Decoder]], name: str, length: int
) -> None:
    _, ours = pairs(name)
    token_ids = prompt(length + 12, ours.vocab_size)
    single = Run(ours)
    steps = torch.cat([single([token]) for token in token_ids])
    run = Run(ours)
    chunks = [run(token_ids[:length]), run(token_ids[length : length + 5])]
    run(prompt(6, 50)[::-1])  # drafts that are refused: their places are written over
    run.truncate(length + 5)
    chunks += [run(token_ids[length + 5 : length + 6]), run(token_ids[length + 6 :])]
    close(torch.cat(chunks), steps)


@pytest.mark.parametrize("name", ["mistral, window 8", "gemma3"])
def test_a_window_matters(pairs: Callable[[str], tuple[Any, Decoder]], name: str) -> None:
    """With all layers windowed a far token cannot change the last logits; with a full layer between, it can."""
    _, ours = pairs(name)
    token_ids = prompt(40, ours.vocab_size)
    other = [(token_ids[0] + 1) % ours.vocab_size, *token_ids[1:]]
    difference = (Run(ours)(token_ids)[-1] - Run(ours)(other)[-1]).abs().max()
    assert (difference == 0) == name.startswith("mistral")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_a_gguf_file_gives_the_same_logits(tiny_model: Build, write_gguf: Callable[..., Path], family: str) -> None:
    model = tiny_model(family, deviation=0.3)
    architecture = "llama" if family == "mistral" else family  # as Mistral's real files call themselves
    window = {"llama.attention.sliding_window": 8} if family == "mistral" else {}
    state = model.state_dict()
    if family == "gemma3":
        del state["lm_head.weight"]  # tied, and real files do not repeat it
    path = write_gguf(state, architecture, metadata=window)
    token_ids = prompt(23, model.config.vocab_size)
    close(Run(decoder(path))(token_ids), reference_logits(model, token_ids))


# "The capital of France is", and what follows it; the closest runner-up is 0.012 behind.
FRANCE = [2, 818, 5279, 529, 7001, 563]

GEMMA3_GREEDY = [506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506, 7488, 3207, 528, 7001, 532]
# Of the last 8 of 561 tokens, beyond the window of 512.
GEMMA3_LONG_ARGMAX = [4406, 236743, 236743, 236743, 236743, 236743, 236743, 236762]
GEMMA3_LONG_MAX = [7.4442, -2.9944, 4.9591, 6.1834, -2.1106, 2.1297, -15.6955, 11.3589]


@pytest.mark.model
def test_gemma3_270m(gemma_path: Path) -> None:
    """The expected values are transformers' own in float32 from this file, whose hash the alias pins."""
    loaded = open_model(str(gemma_path))
    assert loaded.config.sliding_windows == (*[512] * 5, None) * 3
    assert (loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_ids) == (2, (1, 106))
    assert loaded.tokenizer.encode("The capital of France is") == FRANCE
    ours = load_decoder(loaded)
    run = Run(ours)
    tokens = [int(run(FRANCE)[-1].argmax())]
    while len(tokens) < len(GEMMA3_GREEDY):
        tokens.append(int(run(tokens[-1:])[-1].argmax()))
    assert tokens == GEMMA3_GREEDY
    logits = Run(ours, 600)([2, *(place * 7919 % 20000 + 1000 for place in range(560))])[-8:]
    assert logits.argmax(-1).tolist() == GEMMA3_LONG_ARGMAX
    torch.testing.assert_close(logits.amax(-1), torch.tensor(GEMMA3_LONG_MAX), rtol=0, atol=1e-3)
