"""Every family on the native kernels: the reference's logits in float32, and the same bits however it is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import native
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.ngram import NGramDrafter
from outrider.models.loader.load import OpenModel, open_model
from outrider.models.logits import Rows
from outrider.models.native import NativeDecoder
from outrider.runner.model_runner import Chunk, ModelRunner, tree_paths
from outrider.sampling_params import SamplingParams
from outrider.torch_backend.decoder import Decoder, load_decoder
from tests.loading import largest_difference, logits_of
from tests.unit.engine.helpers import engine_of
from tests.unit.models.test_families import MODELS

pytestmark = pytest.mark.skipif(not native.available(), reason=native.describe())

Build = Callable[..., Any]
PROMPTS = [[5], [7, 8, 9] * 4, [11 + 3 * i % 17 for i in range(20)]]
"""Shorter than the window of 8, longer and repetitive, longer and not."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, top_p=0.95, seed=3, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def opened(hf_folder: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], OpenModel]:
    """A small random model of a family, opened; made once."""
    made: dict[str, OpenModel] = {}

    def get(name: str) -> OpenModel:
        if name not in made:
            folder: Path = tmp_path_factory.mktemp("model")
            family, changes = MODELS[name]
            hf_folder(folder, family, deviation=0.3, **changes)
            made[name] = open_model(str(folder))
        return made[name]

    return get


@pytest.mark.parametrize("name", MODELS)
def test_float32_logits_are_the_references(name: str, opened: Callable[[str], OpenModel]) -> None:
    model = opened(name)
    reference = load_decoder(model)
    wide = NativeDecoder(model.config, model.packed_weights("f32"), kv_dtype="float32")
    for token_ids in PROMPTS:
        error = largest_difference(logits_of(wide, token_ids), logits_of(reference, token_ids))
        assert error < 1e-5, f"{len(token_ids)} tokens: off by {error:.1e} of the largest logit"


def tokens_of(
    target: NativeDecoder, drafter: Drafter | None, k: int, params: SamplingParams, **settings: Any
) -> tuple[list[list[int]], int]:
    """Each prompt's tokens, all in one batch, and how many drafts were accepted."""
    engine = engine_of(
        ModelRunner(target, num_blocks=64, block_size=4),
        drafter,
        k,
        new_stream=lambda _: _Silent(),
        max_model_len=64,
        **settings,
    )
    requests = [engine.add_request(str(i), prompt, params) for i, prompt in enumerate(PROMPTS)]
    while engine.has_requests:
        engine.step()
        engine.check_integrity()
    accepted = sum(r.metrics.speculative_decoding.num_accepted_draft_tokens for r in requests)
    return [request.output_token_ids for request in requests], accepted


class _Silent:
    """No text: these vocabularies mean nothing."""

    def step(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


@pytest.mark.parametrize("weight_format", [None, "q8_0", "q4_1"], ids=["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_output_is_the_same_bits_with_any_drafter_and_k(
    name: str, weight_format: str | None, opened: Callable[[str], OpenModel]
) -> None:
    model = opened(name)
    target = NativeDecoder(model.config, model.packed_weights(weight_format), kv_dtype="float16")
    draft = NativeDecoder(model.config, model.packed_weights("q4_1"), kv_dtype="float16")

    def draft_model(tree_width: int = 1) -> DraftModelDrafter:
        runner = ModelRunner(draft, num_blocks=64, block_size=4)
        vocab_size = target.vocab_size
        return DraftModelDrafter(runner, target_vocab_size=vocab_size, max_num_batched_tokens=64, tree_width=tree_width)

    total = 0
    for params in (GREEDY, SEEDED):
        plain, _ = tokens_of(target, None, 0, params)
        assert tokens_of(target, None, 0, params, max_num_seqs=1)[0] == plain, "alone"
        assert tokens_of(target, None, 0, params, max_num_batched_tokens=5)[0] == plain, "in chunks"
        for k in range(1, 9) if weight_format is None else (1, 4, 8):
            drafted, accepted = tokens_of(target, draft_model(), k, params)
            assert drafted == plain, f"draft model, K = {k}"
            total += accepted
        for width, k in ((2, 5), (3, 12)):
            drafted, accepted = tokens_of(target, draft_model(width), k, params)
            assert drafted == plain, f"trees of {k} nodes, width {width}"
            total += accepted
        for k in (1, 4, 8):
            assert tokens_of(target, NGramDrafter(min_match=1, max_match=3), k, params)[0] == plain, f"ngram, K = {k}"
    assert total > 0, "drafts must have been accepted"


PARENTS = [-1, -1, 0, 1, 2, 2, 3, 4]
NODES = [7, 9, 3, 11, 7, 2, 5, 8]


def tree_and_chains(
    model: Decoder | NativeDecoder, prompt: list[int], other: list[int]
) -> tuple[list[Rows], list[Rows]]:
    """For the last token of ``prompt`` and each node of the tree after it: its logits in a pass over the whole tree,
    beside another request's chunk, and those of its path as a chain."""
    runner = ModelRunner(model, num_blocks=64, block_size=4)
    start = len(prompt)
    assert runner.kv.allocate("tree", start + len(NODES))
    assert runner.kv.allocate("other", len(other))
    if start > 1:
        runner.forward([Chunk("tree", prompt[:-1], 0, 1)])
    paths = tree_paths(PARENTS, start)
    tree = Chunk("tree", [prompt[-1], *NODES], start - 1, len(NODES) + 1, start, paths)
    beside, rows = runner.forward([Chunk("other", other, 0, 1), tree]).logits
    assert np.array_equal(beside.row(0), logits_of(model, other)[-1]) or isinstance(model, Decoder)
    chains = [logits_of(model, prompt)[-1]]
    chains += [logits_of(model, [*prompt, *(NODES[place - start] for place in path)])[-1] for path in paths]
    return list(rows.rows(slice(None))), chains


@pytest.mark.parametrize("name", MODELS)
def test_a_tree_row_has_the_bits_of_its_path(name: str, opened: Callable[[str], OpenModel]) -> None:
    model = opened(name)
    native_model = NativeDecoder(model.config, model.packed_weights("q8_0"), kv_dtype="float16")
    reference = load_decoder(model)
    library = native.library
    usual = library.num_threads()
    try:
        for threads in (1, 2, 3):
            library.set_num_threads(threads)
            for prompt in PROMPTS:
                rows, chains = tree_and_chains(native_model, prompt, PROMPTS[1])
                for row, chain in zip(rows, chains, strict=True):
                    assert np.array_equal(row, chain)
    finally:
        library.set_num_threads(usual)
    for prompt in PROMPTS:
        rows, chains = tree_and_chains(reference, prompt, PROMPTS[2])
        for row, chain in zip(rows, chains, strict=True):
            assert largest_difference(row, chain) < 1e-5


@pytest.mark.parametrize("path", [[0, 2, 4, 7], [1, 3], [0], []])
def test_the_accepted_path_goes_on_as_a_chain(path: list[int], opened: Callable[[str], OpenModel]) -> None:
    model = opened(next(iter(MODELS)))
    for decoder in (
        NativeDecoder(model.config, model.packed_weights(), kv_dtype="float16"),
        load_decoder(model),
    ):
        runner = ModelRunner(decoder, num_blocks=16, block_size=4)
        prompt = PROMPTS[1]
        assert runner.kv.allocate("x", len(prompt) + len(NODES))
        runner.forward([Chunk("x", prompt, 0, 1)])
        runner.forward([Chunk("x", NODES, len(prompt), 1, len(prompt), tree_paths(PARENTS, len(prompt)))])
        runner.keep_path("x", len(prompt), path)
        (after,) = runner.forward([Chunk("x", [6], len(prompt) + len(path), 1)]).logits
        chain = logits_of(decoder, [*prompt, *(NODES[node] for node in path), 6])[-1]
        if isinstance(decoder, NativeDecoder):
            assert np.array_equal(after.row(0), chain)
        else:
            assert largest_difference(after.row(0), chain) < 1e-5
