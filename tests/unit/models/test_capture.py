"""Hidden states of chosen layers: both decoders give transformers' own, whatever else is in the pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from outrider import native
from outrider.models.base import Hidden
from outrider.models.loader.load import open_model
from outrider.models.native import NativeDecoder
from outrider.runner.model_runner import Chunk, ModelRunner, tree_paths
from outrider.torch_backend.decoder import Decoder, load_decoder
from tests.loading import runner_for
from tests.unit.models.test_families import MODELS

pytestmark = pytest.mark.skipif(not native.available(), reason=native.describe())

PROMPT = [11 + 3 * i % 17 for i in range(20)]
OTHER = [7, 8, 9] * 4
PARENTS = [-1, -1, 0, 1, 2]
NODES = [7, 9, 3, 11, 2]


@dataclass(frozen=True)
class Case:
    """One model: of transformers, on torch, and on the native kernels in float32 and in 8 bits."""

    original: Any
    reference: Decoder
    wide: NativeDecoder
    packed: NativeDecoder


@pytest.fixture(scope="module")
def case_of(hf_folder: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            family, changes = MODELS[name]
            original = hf_folder(folder, family, deviation=0.3, **changes)
            opened = open_model(str(folder))
            wide = NativeDecoder(opened.config, opened.packed_weights("f32"), kv_dtype="float32")
            packed = NativeDecoder(opened.config, opened.packed_weights("q8_0"))
            made[name] = Case(original, load_decoder(opened), wide, packed)
        return made[name]

    return get


def states_of(model: Decoder | NativeDecoder, token_ids: list[int], capture: list[int], rows: int) -> Hidden:
    """Of the last ``rows`` tokens, [rows, layers, hidden]."""
    output = runner_for(model, len(token_ids)).forward([Chunk("x", token_ids, 0, num_logits=rows)], capture)
    (hidden,) = output.hidden
    assert hidden is not None
    return hidden


@pytest.mark.parametrize("name", MODELS)
def test_both_decoders_give_what_enters_each_layer(name: str, case_of: Callable[[str], Case]) -> None:
    case = case_of(name)
    last = case.reference.num_layers
    capture = [last, *range(last)]  # in any order
    with torch.inference_mode():
        found = case.original(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    expected = {layer: states[0].numpy() for layer, states in enumerate(found[:-1])}  # the last is after the final norm
    reference = states_of(case.reference, PROMPT, capture, len(PROMPT))
    wide = states_of(case.wide, PROMPT, capture, len(PROMPT))
    for at, layer in enumerate(capture):
        if layer in expected:
            np.testing.assert_allclose(reference[:, at], expected[layer], rtol=1e-4, atol=1e-4, err_msg=str(layer))
        scale = np.abs(reference[:, at]).max()
        assert np.abs(wide[:, at] - reference[:, at]).max() < 1e-5 * scale, f"layer {layer}"
    assert reference.shape == (len(PROMPT), last + 1, case.reference.config.hidden_size)
    assert reference.dtype == wide.dtype == np.float32


@pytest.mark.parametrize("kind", ["reference", "packed"])
def test_what_leaves_the_last_layer_gives_the_logits(kind: str, case_of: Callable[[str], Case]) -> None:
    """The final norm and the output matrix, in float64, make the logits of what was captured."""
    case = case_of("llama")
    model = case.reference if kind == "reference" else case.wide
    runner = runner_for(model, len(PROMPT))
    output = runner.forward([Chunk("x", PROMPT, 0, num_logits=3)], [model.num_layers])
    assert output.hidden[0] is not None
    wide = output.hidden[0][:, 0].astype(np.float64)
    state = {name: weight.double().numpy() for name, weight in case.original.state_dict().items()}
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + model.config.rms_norm_eps) * state["model.norm.weight"]
    logits = output.logits[0].rows(slice(None))
    np.testing.assert_allclose(logits, normed @ state["lm_head.weight"].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_row_has_the_same_states_in_any_pass_and_capturing_changes_no_logit(
    name: str, case_of: Callable[[str], Case]
) -> None:
    """Beside other requests, a chunk that is not scored and a tree; in one pass or token by token."""
    model = case_of(name).packed
    capture = [model.num_layers, 1]
    alone = states_of(model, PROMPT, capture, len(PROMPT))

    def runner() -> ModelRunner:
        made = ModelRunner(model, num_blocks=64, block_size=4)
        for request in ("x", "tree", "unscored"):
            assert made.kv.allocate(request, 40)
        made.forward([Chunk("tree", OTHER[:-1], 0, 1)])
        return made

    chunks = [
        Chunk("unscored", OTHER, 0, num_logits=0),
        Chunk("tree", [OTHER[-1], *NODES], 11, len(NODES) + 1, 12, tree_paths(PARENTS, 12)),
        Chunk("x", PROMPT, 0, num_logits=5),
    ]
    plain, captured = runner().forward(chunks), runner().forward(chunks, capture)
    assert plain.hidden == [None, None, None]
    for with_states, without in zip(captured.logits, plain.logits, strict=True):
        assert np.array_equal(with_states.rows(slice(None)), without.rows(slice(None)))
    unscored, tree, scored = captured.hidden
    assert unscored is not None
    assert tree is not None
    assert scored is not None
    assert unscored.shape == (0, 2, model.config.hidden_size)
    assert np.array_equal(scored, alone[-5:])
    for node, path in enumerate(tree_paths(PARENTS, 0)):
        chain = [*OTHER, *(NODES[place] for place in path)]
        assert np.array_equal(tree[node + 1], states_of(model, chain, capture, 1)[0]), f"node {node}"
    single, rows = runner(), []
    for place, token_id in enumerate(PROMPT):
        (hidden,) = single.forward([Chunk("x", [token_id], place, num_logits=1)], capture).hidden
        rows.append(hidden)
    assert np.array_equal(np.concatenate([row for row in rows if row is not None]), alone)


def test_the_reference_takes_trees_and_chunks_that_are_not_scored(case_of: Callable[[str], Case]) -> None:
    model = case_of("llama").reference
    runner = ModelRunner(model, num_blocks=64, block_size=4)
    for request in ("tree", "unscored"):
        assert runner.kv.allocate(request, 40)
    tree = Chunk("tree", [*OTHER, *NODES], 0, len(NODES), 12, tree_paths(PARENTS, 12))
    output = runner.forward([Chunk("unscored", OTHER, 0, num_logits=0), tree], [1])
    unscored, nodes = output.hidden
    assert unscored is not None
    assert nodes is not None
    assert unscored.shape == (0, 1, model.config.hidden_size)
    for node, path in enumerate(tree_paths(PARENTS, 0)):
        chain = states_of(model, [*OTHER, *(NODES[place] for place in path)], [1], 1)
        np.testing.assert_allclose(nodes[node], chain[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [-1, 3])
@pytest.mark.parametrize("kind", ["reference", "packed"])
def test_a_layer_that_there_is_not_is_named(kind: str, layer: int, case_of: Callable[[str], Case]) -> None:
    runner = runner_for(getattr(case_of("llama"), kind), 4)
    with pytest.raises(ValueError, match=f"capture={layer} must be a layer from 0 to 2"):
        runner.forward([Chunk("x", [1, 2], 0, num_logits=1)], [1, layer])


def test_a_pass_says_how_long_it_took(case_of: Callable[[str], Case]) -> None:
    output = runner_for(case_of("llama").packed, 4).forward([Chunk("x", [1, 2], 0, num_logits=1)])
    assert 0.0 < output.seconds < 60.0
