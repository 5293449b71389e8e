"""Native paged attention against float64, and its promise: a row's bits depend on its own keys only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

native = pytest.importorskip("outrider._native", reason="the native library is not built")

Floats = NDArray[np.float32]


@dataclass
class Case:
    """A paged cache with requests of given lengths in shuffled blocks; ``query`` holds each one's last rows."""

    keys: NDArray[Any]
    values: NDArray[Any]
    tables: NDArray[np.int64]
    query: list[Floats]
    seq_lens: list[int]

    def run(self, window: int = 0, requests: list[int] | None = None, last: int | None = None) -> list[Floats]:
        """Rows of the requests, each [rows, heads, head_dim]; ``last`` cuts each to its last rows."""
        chosen = range(len(self.seq_lens)) if requests is None else requests
        rows = [self.query[r][-last:] if last else self.query[r] for r in chosen]
        starts = np.cumsum([0, *map(len, rows)])
        places = [np.arange(self.seq_lens[r] - len(q), self.seq_lens[r]) for r, q in zip(chosen, rows, strict=True)]
        out = native.attention(
            np.concatenate(rows),
            self.keys,
            self.values,
            self.tables[list(chosen)],
            [int(s) for s in starts],
            [self.seq_lens[r] for r in chosen],
            np.concatenate(places),
            0.2,
            window,
        )
        return [out[a:b] for a, b in pairwise(starts)]

    def request(self, r: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """K and V of request r in order, [seq_len, kv_heads, head_dim]."""

        def gather(cache: NDArray[Any]) -> NDArray[np.float64]:
            wide: NDArray[np.float64] = flat(cache[self.tables[r]])[: self.seq_lens[r]].astype(np.float64)
            return wide

        return gather(self.keys), gather(self.values)

    def reference(self, r: int, window: int = 0) -> NDArray[np.float64]:
        keys, values = self.request(r)
        query = self.query[r].astype(np.float64)
        group = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat(group, 1), values.repeat(group, 1)
        scores = np.einsum("nhd,shd->nhs", query, keys) * 0.2
        place, position = np.arange(len(keys)), np.arange(len(keys) - len(query), len(keys))[:, None]
        seen = (place <= position) & ((place > position - window) if window else True)
        scores = np.where(seen[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed: NDArray[np.float64] = np.einsum("nhs,shd->nhd", weights / weights.sum(-1, keepdims=True), values)
        return mixed


def flat(cache: NDArray[Any]) -> NDArray[Any]:
    """The cache by slots, [slots, kv_heads, head_dim]; not copied."""
    return cache.reshape(-1, *cache.shape[2:])


def make(seq_lens: list[int], rows: list[int], heads: int, kv_heads: int, dim: int, block: int, dtype: str) -> Case:
    rng = np.random.default_rng(sum(seq_lens) + dim)
    counts = [-(-n // block) for n in seq_lens]
    total = sum(counts) + 1
    keys, values = (rng.standard_normal((total, block, kv_heads, dim)).astype(dtype) for _ in range(2))
    order = rng.permutation(total).tolist()
    tables = np.zeros((len(seq_lens), max(counts)), np.int64)
    for r, n in enumerate(counts):
        tables[r, :n] = [order.pop() for _ in range(n)]
    query = [rng.standard_normal((n, heads, dim)).astype(np.float32) for n in rows]
    return Case(keys, values, tables, query, seq_lens)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("window", [0, 5, 100])
def test_agrees_with_float64(dtype: str, window: int, variant: str) -> None:
    case = make([1, 17, 300, 700], [1, 17, 3, 40], 6, 2, 64, 16, dtype)
    for r, out in enumerate(case.run(window)):
        np.testing.assert_allclose(out, case.reference(r, window), rtol=1e-4, atol=2e-5)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=4),
    st.sampled_from([(1, 1), (3, 3), (4, 2), (9, 3), (7, 1)]),
    st.sampled_from([1, 3, 4, 8, 20, 80]),
    st.sampled_from([1, 2, 16, 32]),
)
def test_any_shape(lengths: list[tuple[int, int]], heads: tuple[int, int], dim: int, block: int) -> None:
    case = make([n for n, _ in lengths], [min(n, rows) for n, rows in lengths], *heads, dim, block, "float32")
    for r, out in enumerate(case.run()):
        np.testing.assert_allclose(out, case.reference(r), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("window", [0, 70])
def test_a_row_has_the_same_bits_in_any_company(window: int, variant: str) -> None:
    """Alone, in a chunk, in a batch, with 1, 2 or 3 threads: long contexts are split or not, with equal bits."""
    case = make([1100, 40, 530], [33, 9, 1], 6, 2, 64, 16, "float16")
    results = []
    for threads in (1, 2, 3):
        native.set_num_threads(threads)
        results.append(case.run(window))
        for r in range(3):
            assert np.array_equal(case.run(window, requests=[r])[0], results[0][r])
        for last in (1, 2, 5, 8, 17):
            for r, out in enumerate(case.run(window, last=last)):
                assert np.array_equal(out, results[0][r][-last:]), f"request {r}, {last} rows, {threads} threads"
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert np.array_equal(a, b)


def test_keys_after_a_row_cannot_reach_it(variant: str) -> None:
    """NaN in a later row's K and V, and in memory that was never written."""
    case = make([70], [4], 2, 1, 16, 16, "float32")
    clean = case.run()[0]
    for cache in (case.keys, case.values):
        slots = flat(cache)
        slots[case.tables[0, 4] * 16 + 5] = np.nan  # place 69, the last row's own
        slots[case.tables[0, 4] * 16 + 6 : case.tables[0, 4] * 16 + 16] = np.nan
    dirty = case.run()[0]
    assert np.array_equal(dirty[:3], clean[:3])
    assert np.isnan(dirty[3]).all()


PARENTS = [-1, -1, 0, 0, 1, 2, 2, 5, 4, 7]
"""A tree of depth 5, its nodes not in the order of any path."""


def as_tree(case: Case, window: int, committed: int = 2) -> tuple[Floats, list[Floats]]:
    """The last request's last rows as ``committed`` tokens and a tree, after the other requests' rows; and each node's
    row run as the end of a chain of its own."""
    last = len(case.seq_lens) - 1
    start = case.seq_lens[last] - len(PARENTS)
    paths: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        paths.append([*(paths[parent] if parent >= 0 else []), start + node])
    rows = [len(q) for q in case.query]
    places = [np.arange(n - count, n) for n, count in zip(case.seq_lens, rows, strict=True)]
    places[last][committed:] = [start + len(path) - 1 for path in paths]
    tree = np.full((sum(rows), 5), 10**9)
    for row, path in zip(tree[-len(PARENTS) :], paths, strict=True):
        row[: len(path)] = path
    out = native.attention(
        np.concatenate(case.query),
        case.keys,
        case.values,
        case.tables,
        [int(n) for n in np.cumsum([0, *rows])],
        case.seq_lens,
        np.concatenate(places),
        0.2,
        window,
        tree,
        [*case.seq_lens[:last], start],
    )
    chains = []
    for node, path in enumerate(paths):
        keys, values = case.keys.copy(), case.values.copy()
        slots = [int(case.tables[last, p // 16]) * 16 + p % 16 for p in range(case.seq_lens[last])]
        for cache, old in ((keys, case.keys), (values, case.values)):
            flat(cache)[slots[start : start + len(path)]] = flat(old)[[slots[p] for p in path]]
        query, length = case.query[last][committed + node][None], start + len(path)
        table = case.tables[[last]]
        chains.append(
            native.attention(query, keys, values, table, [0, 1], [length], np.array([length - 1]), 0.2, window)[0]
        )
    return out, chains


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("window", [0, 3, 70])
def test_a_tree_row_has_the_bits_of_its_path_as_a_chain(dtype: str, window: int, variant: str) -> None:
    """Trees that begin before, at and after the borders of tiles, pieces and partitions; beside other requests."""
    for start in (1, 13, 60, 64, 125, 127, 128, 400):
        case = make([90, start + len(PARENTS)], [3, len(PARENTS) + min(2, start)], 6, 2, 64, 16, dtype)
        plain = case.run(window, requests=[0])[0]
        for threads in (1, 2, 3):
            native.set_num_threads(threads)
            out, chains = as_tree(case, window, min(2, start))
            assert np.array_equal(out[:3], plain), "the other request"
            for node, chain in enumerate(chains):
                assert np.array_equal(out[node - len(PARENTS)], chain), f"node {node}, start {start}, {threads} threads"


def test_bad_trees_are_named() -> None:
    case = make([20], [2], 4, 2, 16, 16, "float32")

    def run(positions: list[int], tree: list[list[int]] | None, start: list[int] | None) -> None:
        places = None if tree is None else np.array(tree)
        native.attention(
            case.query[0], case.keys, case.values, case.tables, [0, 2], [20], np.array(positions), 1.0, 0, places, start
        )

    run([18, 18], [[18], [19]], [18])
    with pytest.raises(ValueError, match="row 1 has position 18 at place 19, but is in no tree"):
        run([18, 18], None, None)
    with pytest.raises(ValueError, match="tree place 20 of row 1 is not below 20"):
        run([18, 18], [[18], [20]], [18])
    with pytest.raises(ValueError, match="row 1 has 2 places from its tree's start 18 on, tree holds 1"):
        run([18, 19], [[18], [19]], [18])
    with pytest.raises(ValueError, match="tree_start holds 2 numbers for 1 requests"):
        run([18, 18], [[18], [19]], [18, 18])
    with pytest.raises(ValueError, match="tree and tree_start come together"):
        run([18, 18], [[18], [19]], None)


def test_bad_input_is_named() -> None:
    case = make([20], [2], 4, 2, 16, 16, "float32")
    arguments = [case.query[0], case.keys, case.values, case.tables, [0, 2], [20], np.array([18, 19]), 1.0]

    def run(place: int, value: object) -> None:
        native.attention(*arguments[:place], value, *arguments[place + 1 :])

    with pytest.raises(ValueError, match="block 9 of request 0 is not below 3"):
        run(3, np.array([[0, 9]]))
    with pytest.raises(ValueError, match="needs 3 blocks, its table holds 2"):
        run(5, [40])
    with pytest.raises(ValueError, match="2 new tokens of 1"):
        run(5, [1])
    with pytest.raises(ValueError, match="query_start must hold"):
        run(4, [0, 3])
    with pytest.raises(ValueError, match="keys and values differ in type"):
        run(2, case.values.astype(np.float16))
    with pytest.raises(ValueError, match="keys must be float32 or float16"):
        run(1, case.keys.astype(np.float64))
