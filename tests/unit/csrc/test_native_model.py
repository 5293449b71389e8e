"""The native decoder against a plain float64 one, and equal bits however the tokens are grouped into steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

native = pytest.importorskip("outrider._native", reason="the native library is not built")

BLOCK, VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, DIM, LAYERS = 4, 50, 64, 96, 4, 2, 16, 3
EPS = 1e-5


@dataclass(frozen=True)
class Family:
    """What a model family adds to the plain decoder."""

    bias: bool = False
    head_norms: bool = False
    sandwich: bool = False
    act: str = "silu"
    embedding_scale: float = 1.0
    windows: tuple[int, ...] = (0, 0, 0)
    thetas: tuple[float, ...] = (1e4, 1e4, 1e4)


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(bias=True),
    "qwen3": Family(head_norms=True),
    "gemma3": Family(
        head_norms=True,
        sandwich=True,
        act="gelu_tanh",
        embedding_scale=8.0,
        windows=(6, 6, 0),
        thetas=(1e4, 1e4, 1e6),
    ),
}

Weights = dict[str, NDArray[np.float32]]


def random_weights(family: Family) -> tuple[Weights, list[Weights]]:
    rng = np.random.default_rng(11)

    def matrix(out: int, into: int) -> NDArray[np.float32]:
        values: NDArray[np.float64] = rng.standard_normal((out, into)) / into**0.5
        return values.astype(np.float32)

    def vector(n: int) -> NDArray[np.float32]:
        return (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    layers = []
    for i in range(LAYERS):
        layer = {
            "q": matrix(HEADS * DIM, HIDDEN),
            "k": matrix(KV_HEADS * DIM, HIDDEN),
            "v": matrix(KV_HEADS * DIM, HIDDEN),
            "o": matrix(HIDDEN, HEADS * DIM),
            "gate": matrix(INNER, HIDDEN),
            "up": matrix(INNER, HIDDEN),
            "down": matrix(HIDDEN, INNER),
            "attn_norm": vector(HIDDEN),
            "mlp_norm": vector(HIDDEN),
            "rope": (family.thetas[i] ** (-np.arange(0, DIM, 2) / DIM)).astype(np.float32),
        }
        if family.bias:
            layer |= {f"{n}_bias": vector(len(layer[n])) for n in "qkv"}
        if family.head_norms:
            layer |= {"q_norm": vector(DIM), "k_norm": vector(DIM)}
        if family.sandwich:
            layer |= {"post_attn_norm": vector(HIDDEN), "post_mlp_norm": vector(HIDDEN)}
        layers.append(layer)
    return {"embed": matrix(VOCAB, HIDDEN) * 8, "lm_head": matrix(VOCAB, HIDDEN), "final_norm": vector(HIDDEN)}, layers


MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def build(family: Family, fmt: str) -> Any:
    return model_of(family, *random_weights(family), fmt)


def model_of(family: Family, outer: dict[str, Any], layers: list[dict[str, Any]], fmt: str) -> Any:
    packed = [
        {k: native.pack_float(v, fmt) if k in MATRICES else v for k, v in layer.items()} | {"window": family.windows[i]}
        for i, layer in enumerate(layers)
    ]
    return native.Model(
        native.pack_float(outer["embed"], fmt),
        native.pack_float(outer["lm_head"], fmt),
        outer["final_norm"],
        packed,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        eps=EPS,
        attention_scale=DIM**-0.5,
        embedding_scale=family.embedding_scale,
        act=family.act,
    )


def reference(family: Family, tokens: list[int]) -> NDArray[np.float64]:
    """Logits [tokens, vocab] of the whole sequence at once, in float64."""
    outer, _ = random_weights(family)
    logits: NDArray[np.float64] = rms_normed(reference_states(family, tokens)[-1], outer["final_norm"])
    return np.asarray(logits @ outer["lm_head"].T)


def rms_normed(x: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    normed: NDArray[Any] = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight
    return normed


def reference_states(family: Family, tokens: list[int]) -> list[NDArray[np.float64]]:
    """What enters each layer, and what leaves the last one, [tokens, hidden], in float64."""
    outer, layers = random_weights(family)
    norm, states = rms_normed, []

    n = len(tokens)
    place = np.arange(n)
    hidden = outer["embed"][tokens].astype(np.float64) * family.embedding_scale
    for i, w in enumerate(layers):
        states.append(hidden)
        x = norm(hidden, w["attn_norm"])
        q, k, v = ((x @ w[m].T + w.get(f"{m}_bias", 0.0)).reshape(n, -1, DIM) for m in "qkv")
        if family.head_norms:
            q, k = norm(q, w["q_norm"]), norm(k, w["k_norm"])
        angle = place[:, None, None] * w["rope"]

        def turned(x: NDArray[Any], angle: NDArray[Any] = angle) -> NDArray[Any]:
            a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
            return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

        q, k = turned(q), turned(k)
        k, v = k.repeat(HEADS // KV_HEADS, 1), v.repeat(HEADS // KV_HEADS, 1)
        scores = np.einsum("nhd,shd->nhs", q, k) * DIM**-0.5
        seen = place[None] <= place[:, None]
        if family.windows[i]:
            seen &= place[None] > place[:, None] - family.windows[i]
        scores = np.where(seen[:, None], scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("nhs,shd->nhd", p / p.sum(-1, keepdims=True), v).reshape(n, -1) @ w["o"].T
        hidden = hidden + (norm(mixed, w["post_attn_norm"]) if family.sandwich else mixed)
        x = norm(hidden, w["mlp_norm"])
        gate, up = x @ w["gate"].T, x @ w["up"].T
        u = gate if family.act == "silu" else 2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        down = (gate / (1 + np.exp(-u)) * up) @ w["down"].T
        hidden = hidden + (norm(down, w["post_mlp_norm"]) if family.sandwich else down)
    return [*states, hidden]


class Runner:
    """Feeds tokens of several requests to a model over one cache; every request owns its own blocks."""

    def __init__(self, model: Any, requests: int, dtype: str, max_len: int = 48) -> None:
        self.model = model
        self.per = max_len // BLOCK
        shape = (requests * self.per, BLOCK, KV_HEADS, DIM)
        self.arrays = [[np.zeros(shape, dtype=dtype) for _ in range(LAYERS)] for _ in range(2)]
        self.cache = native.KVCache(*self.arrays)
        self.tables = np.random.default_rng(0).permutation(requests * self.per).reshape(requests, self.per)
        self.done = [0] * requests

    def step(self, new: dict[int, list[int]]) -> dict[int, NDArray[np.float32]]:
        """Logits of every new token, [tokens, vocab] for each request."""
        tokens, positions, slots, starts, lens = [], [], [], [0], []
        for r, ids in new.items():
            for place in range(self.done[r], self.done[r] + len(ids)):
                positions.append(place)
                slots.append(self.tables[r, place // BLOCK] * BLOCK + place % BLOCK)
            tokens += ids
            self.done[r] += len(ids)
            starts.append(len(tokens))
            lens.append(self.done[r])
        logits = np.empty((len(tokens), VOCAB), np.float32)
        self.model.forward(
            self.cache,
            np.array(tokens),
            np.array(positions),
            np.array(slots),
            starts,
            lens,
            np.ascontiguousarray(self.tables[list(new)]),
            np.arange(len(tokens)),
            logits,
        )
        return {r: logits[a:b] for r, a, b in zip(new, starts, starts[1:], strict=False)}


def random_tokens(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, n)]


@pytest.mark.parametrize("name", FAMILIES)
def test_agrees_with_float64(name: str, variant: str) -> None:
    tokens = random_tokens(21)
    runner = Runner(build(FAMILIES[name], "f32"), 1, "float32")
    logits = runner.step({0: tokens})[0]
    np.testing.assert_allclose(logits, reference(FAMILIES[name], tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fmt", ["q8_0", "q4_1"])
def test_quantized_stays_near_its_own_weights(fmt: str) -> None:
    """Not a bound, a check that nothing is grossly wrong in the quantized path: 8 bits stay within a few percent."""
    tokens = random_tokens(21)
    logits = Runner(build(FAMILIES["qwen2"], fmt), 1, "float16").step({0: tokens})[0]
    exact = reference(FAMILIES["qwen2"], tokens)
    error = np.sqrt(((logits - exact) ** 2).mean() / (exact**2).mean())
    assert error < {"q8_0": 0.03, "q4_1": 0.2}[fmt]


@pytest.mark.parametrize("fmt", ["f32", "bf16", "q8_0", "q4_1"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_have_the_same_bits_in_any_grouping(name: str, fmt: str, variant: str) -> None:
    model = build(FAMILIES[name], fmt)
    dtype = "float32" if fmt == "f32" else "float16"
    tokens = [random_tokens(37, seed) for seed in range(3)]
    native.set_num_threads(1)
    alone = []
    for ids in tokens:
        runner = Runner(model, 1, dtype)
        alone.append(np.concatenate([runner.step({0: [t]})[0] for t in ids]))
    for threads in (1, 2, 3, 4):
        native.set_num_threads(threads, fixed=threads > 1)
        for chunk in (2, 5, 33):
            runner, at = Runner(model, 3, dtype), 0
            while at < 37:
                out = runner.step({r: tokens[r][at : at + chunk] for r in (2, 0, 1)})
                for r in range(3):
                    assert np.array_equal(out[r], alone[r][at : at + chunk]), f"request {r} at {at}, {threads} threads"
                at += chunk


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_the_number_of_threads_may_change_between_passes(name: str) -> None:
    model, tokens = build(FAMILIES[name], "q8_0"), random_tokens(37)
    assert model.threads == 0
    native.set_num_threads(1, fixed=True)
    runner = Runner(model, 1, "float16")
    alone = [runner.step({0: [t]})[0] for t in tokens]
    runner = Runner(model, 1, "float16")
    for i, token in enumerate(tokens):
        threads = 1 + i * 7 % 4
        native.set_num_threads(threads, fixed=True)
        assert np.array_equal(runner.step({0: [token]})[0], alone[i]), f"token {i}, {threads} threads"
        assert model.threads == threads


def test_the_passes_of_a_model_choose_their_threads_within_the_limit() -> None:
    model = build(FAMILIES["llama"], "q8_0")
    native.set_num_threads(3)
    runner, at_work = Runner(model, 1, "float16"), set()
    for token in random_tokens(40):
        runner.step({0: [token]})
        at_work.add(model.threads)
    assert 3 in at_work
    assert at_work <= {1, 2, 3}
    assert len(at_work) > 1  # a trial of fewer within the first passes


def forward(
    runner: Runner, tokens: list[int], rows: list[int], capture: list[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits and captured states of ``rows`` of one request's first tokens, in one pass."""
    count = len(tokens)
    logits = np.empty((len(rows), VOCAB), np.float32)
    hidden = np.full((len(rows), len(capture), HIDDEN), np.nan, np.float32)
    slots = runner.tables[0, np.arange(count) // BLOCK] * BLOCK + np.arange(count) % BLOCK
    places = (np.array(tokens), np.arange(count), slots, [0, count], [count], runner.tables[:1].copy())
    states = {"capture": capture, "hidden": hidden} if capture else {}
    runner.model.forward(runner.cache, *places, np.array(rows, np.int64), logits, **states)
    return logits, hidden


def test_only_asked_rows_are_scored_and_hidden_states_come_back() -> None:
    model = build(FAMILIES["llama"], "q8_0")
    runner = Runner(model, 1, "float32")
    tokens = random_tokens(9)
    every = runner.step({0: tokens})[0]
    logits, hidden = forward(runner, tokens, [8, 3], [LAYERS])
    assert np.array_equal(logits, every[[8, 3]])
    outer, _ = random_weights(FAMILIES["llama"])
    normed = native.rms_norm(hidden[:, 0].copy(), outer["final_norm"], EPS)
    assert np.array_equal(native.linear(normed, [native.pack_float(outer["lm_head"], "q8_0")])[0], logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_captured_states_enter_their_layers(name: str, variant: str) -> None:
    """Against float64; layers in any order and twice; of no row; and no bit of the logits changes."""
    family, tokens = FAMILIES[name], random_tokens(21)
    runner = Runner(build(family, "f32"), 1, "float32")
    plain, _ = forward(runner, tokens, [20, 3], [])
    capture = [2, 0, LAYERS, 1, 2]
    logits, hidden = forward(runner, tokens, [20, 3], capture)
    assert np.array_equal(logits, plain)
    for at, layer in enumerate(capture):
        exact = reference_states(family, tokens)[layer][[20, 3]]
        np.testing.assert_allclose(hidden[:, at], exact, rtol=1e-4, atol=1e-4, err_msg=f"layer {layer}")
    assert np.array_equal(hidden[:, 0], hidden[:, 4])
    none, states = forward(runner, tokens, [], [1])
    assert none.shape == (0, VOCAB)
    assert states.shape == (0, 1, HIDDEN)


def test_captured_states_have_the_same_bits_in_any_grouping(variant: str) -> None:
    runner = Runner(build(FAMILIES["gemma3"], "q8_0"), 1, "float16")
    tokens = random_tokens(21)
    capture = list(range(LAYERS + 1))
    native.set_num_threads(1)
    _, together = forward(runner, tokens, list(range(21)), capture)
    for threads, count in ((1, 1), (1, 7), (3, 21)):
        native.set_num_threads(threads)
        _, alone = forward(runner, tokens[:count], [count - 1], capture)
        assert np.array_equal(alone[0], together[count - 1]), f"{count} tokens, {threads} threads"


def test_bad_input_is_named() -> None:
    model = build(FAMILIES["llama"], "q8_0")
    runner = Runner(model, 1, "float32")
    logits = np.empty((1, VOCAB), np.float32)
    arguments = [runner.cache, np.array([3]), np.array([0]), np.array([0]), [0, 1], [1], runner.tables[:1].copy()]
    arguments += [np.array([0]), logits]

    def run(place: int, value: object) -> None:
        model.forward(*arguments[:place], value, *arguments[place + 1 :])

    with pytest.raises(ValueError, match="token id 50 is not below the vocabulary's 50"):
        run(1, np.array([VOCAB]))
    with pytest.raises(ValueError, match="slot -1 is not below 48"):
        run(3, np.array([-1]))
    with pytest.raises(ValueError, match="logit row 1 is not below 1"):
        run(7, np.array([1]))
    with pytest.raises(ValueError, match="columns of logits: 49, expected 50"):
        run(8, np.empty((1, 49), np.float32))
    with pytest.raises(TypeError):
        run(8, np.empty((1, VOCAB)))
    with pytest.raises(ValueError, match="captured layer 4 is not from 0 to 3"):
        model.forward(*arguments, capture=[0, 4], hidden=np.empty((1, 2, HIDDEN), np.float32))
    with pytest.raises(ValueError, match="captured layer -1 is not from 0 to 3"):
        model.forward(*arguments, capture=[-1], hidden=np.empty((1, 1, HIDDEN), np.float32))
    with pytest.raises(ValueError, match="capture and hidden come together"):
        model.forward(*arguments, capture=[1])
    with pytest.raises(ValueError, match="layers of hidden: 1, expected 2"):
        model.forward(*arguments, capture=[1, 2], hidden=np.empty((1, 1, HIDDEN), np.float32))
    with pytest.raises(ValueError, match="columns of hidden: 63, expected 64"):
        model.forward(*arguments, capture=[1], hidden=np.empty((1, 1, 63), np.float32))
    with pytest.raises(ValueError, match="the cache has 1 layers, the model 3"):
        run(0, native.KVCache(runner.arrays[0][:1], runner.arrays[1][:1]))
    outer, layers = random_weights(FAMILIES["llama"])
    embed = native.pack_float(outer["embed"], "f32")
    packed = {k: native.pack_float(v, "f32") if k in MATRICES else v for k, v in layers[0].items()}

    def made(layer: dict[str, object]) -> None:
        native.Model(
            embed, None, outer["final_norm"], [layer], heads=4, kv_heads=2, head_dim=16, eps=1e-5, attention_scale=0.25
        )

    with pytest.raises(ValueError, match="unknown entry 'qnorm'"):
        made(packed | {"qnorm": outer["final_norm"]})
    with pytest.raises(ValueError, match=r"q of layer 0 is \[50, 64\], expected \[64, 64\]"):
        made(packed | {"q": embed})
    with pytest.raises(ValueError, match="attn_norm of layer 0 has 16 values, expected 64"):
        made(packed | {"attn_norm": np.ones(16, np.float32)})


@pytest.mark.parametrize("bias", [0.0, 1e-6, 7e4, -1e9, np.nan, np.inf])
def test_a_half_cache_holds_float16_to_nearest_and_no_infinity(bias: float, variant: str) -> None:
    """Against a float32 cache of the same pass; an infinity that the pass itself gave is reported as a NaN."""
    outer, layers = random_weights(FAMILIES["qwen2"])
    layers[0]["v_bias"] += np.float32(bias)
    model = model_of(FAMILIES["qwen2"], outer, layers, "f32")
    half, wide = Runner(model, 1, "float16"), Runner(model, 1, "float32")
    logits = half.step({0: random_tokens(5)})[0]
    wide.step({0: random_tokens(5)})
    kept, exact = half.arrays[1][0], wide.arrays[1][0]
    if np.isfinite(bias):
        assert np.array_equal(kept, exact.clip(-65504, 65504).astype(np.float16))
        assert np.isfinite(logits).all()
    else:
        assert np.array_equal(np.isnan(kept), ~np.isfinite(exact))
        assert np.isnan(logits).any()
    assert np.array_equal(half.arrays[0][0], wide.arrays[0][0].astype(np.float16))
