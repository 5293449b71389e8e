"""The torch primitives against plain formulas; attention over blocks that lie in any order, with and without window."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.torch_backend import ops


def plain_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, place: int, scale: float, window: int | None
) -> torch.Tensor:
    """One query [heads, dim] at ``place`` over keys and values [length, kv_heads, dim], by the definition."""
    first = 0 if window is None else max(0, place - window + 1)
    group = query.shape[0] // keys.shape[1]
    heads = []
    for head in range(query.shape[0]):
        seen = slice(first, place + 1)
        weights = torch.softmax(keys[seen, head // group] @ query[head] * scale, dim=0)
        heads.append(weights @ values[seen, head // group])
    return torch.stack(heads)


@given(
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=3),
    window=st.none() | st.integers(1, 45),
    block_size=st.sampled_from([1, 4, 16]),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    scale=st.none() | st.just(0.3),
    seed=st.integers(0, 1000),
)
def test_paged_attention(
    requests: list[tuple[int, int]],
    window: int | None,
    block_size: int,
    heads: tuple[int, int],
    scale: float | None,
    seed: int,
) -> None:
    (num_heads, num_kv_heads), head_dim = heads, 8
    generator = torch.Generator().manual_seed(seed)
    lengths = [max(length, rows) for length, rows in requests]
    rows = [min(length, rows) for length, rows in requests]
    needed = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(needed) + 1, generator=generator)
    tables = torch.zeros(len(requests), max(needed), dtype=torch.long)
    # What lies beyond a request's tokens, or in no block of it, must not be read: it would show.
    key_cache = torch.full((sum(needed) + 1, block_size, num_kv_heads, head_dim), 1e4)
    value_cache = key_cache.clone()
    given_blocks, keys, values = 0, [], []
    for r, length in enumerate(lengths):
        tables[r, : needed[r]] = order[given_blocks : given_blocks + needed[r]]
        given_blocks += needed[r]
        keys.append(torch.randn(length, num_kv_heads, head_dim, generator=generator))
        values.append(torch.randn(length, num_kv_heads, head_dim, generator=generator))
        places = torch.arange(length)
        slots = tables[r, places // block_size] * block_size + places % block_size
        ops.write_kv(key_cache, slots, keys[r])
        ops.write_kv(value_cache, slots, values[r])
    query = torch.randn(sum(rows), num_heads, head_dim, generator=generator)
    starts = [sum(rows[:r]) for r in range(len(rows) + 1)]
    found = ops.paged_attention(query, key_cache, value_cache, tables, starts, lengths, scale, window)
    factor = head_dim**-0.5 if scale is None else scale
    for r, length in enumerate(lengths):
        for row in range(rows[r]):
            place = length - rows[r] + row
            expected = plain_attention(query[starts[r] + row], keys[r], values[r], place, factor, window)
            torch.testing.assert_close(found[starts[r] + row], expected, rtol=1e-4, atol=1e-5)


@given(values=st.lists(st.floats(-8, 8), min_size=1, max_size=8), up=st.floats(-3, 3))
def test_gated_activations(values: list[float], up: float) -> None:
    gate_up = torch.tensor([values + [up] * len(values)], dtype=torch.float64)
    silu = [up * x / (1 + math.exp(-x)) for x in values]
    gelu = [up * x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) for x in values]
    assert ops.silu_mul(gate_up)[0].tolist() == pytest.approx(silu)
    assert ops.gelu_tanh_mul(gate_up)[0].tolist() == pytest.approx(gelu)


def test_norms_are_of_the_last_dimension() -> None:
    x = torch.tensor([[[3.0, 4.0], [1.0, 1.0]]])
    found = ops.rms_norm(x, torch.tensor([2.0, 1.0]), eps=0.5)
    expected = [[6 / math.sqrt(13), 4 / math.sqrt(13)], [2 / math.sqrt(1.5), 1 / math.sqrt(1.5)]]
    torch.testing.assert_close(found[0], torch.tensor(expected))


def test_equal_largest_values_give_the_lowest_id() -> None:
    largest, ids = ops.max_and_argmax(torch.tensor([[1.0, 5.0, 5.0], [7.0, 0.0, 7.0]]))
    assert (largest.tolist(), ids.tolist()) == ([5.0, 7.0], [1, 0])
