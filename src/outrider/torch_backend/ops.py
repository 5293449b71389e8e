"""Tensor primitives in plain torch, for any device: the oracle of every faster backend.

Softmax, norms and rotary angles are computed in float32 whatever the type of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def embedding(table: Tensor, token_ids: Tensor) -> Tensor:
    """Rows of ``table`` [vocab, hidden] at ``token_ids`` [n]: [n, hidden]."""
    return F.embedding(token_ids, table)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x`` [n, in] times ``weight`` [out, in] transposed, plus ``bias`` [out]: [n, out]."""
    return F.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` [n, d] divided by its root mean square over d, times ``weight`` [d] (arXiv 1910.07467)."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def silu_mul(gate_up: Tensor) -> Tensor:
    """``gate_up`` [n, 2d], the gate's half first: silu(gate) * up, [n, d] (SwiGLU, arXiv 2002.05202)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """``gate_up`` [n, 2d], the gate's half first: gelu(gate) * up, [n, d], by the tanh formula (arXiv 1606.08415)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def rotary_tables(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position times frequency, each [n, 1, head_dim] float32, both halves alike."""
    angles = positions.float()[:, None] * frequencies[None, :]
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [n, heads, head_dim] by the tables; pairs are (i, i + head_dim / 2)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)


def write_kv(cache: Tensor, slot_mapping: Tensor, new: Tensor) -> None:
    """Write ``new`` [n, kv_heads, head_dim] to the slots [n] of ``cache`` [blocks, block_size, kv_heads, head_dim]."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, new.to(cache.dtype))


def move_kv(cache: Tensor, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
    """Copy each slot of ``cache`` [blocks, block_size, kv_heads, head_dim] to another."""
    flat = cache.view(-1, *cache.shape[2:])
    flat[list(to_slots)] = flat[list(from_slots)]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Sequence[int],
    seq_lens: Sequence[int],
    scale: float | None = None,
    window: int | None = None,
    tree: tuple[Sequence[int], Tensor] | None = None,
) -> Tensor:
    """Causal attention of each request's new tokens over its own cached ones.

    query [n, heads, head_dim]; caches [blocks, block_size, kv_heads, head_dim]; block_tables [requests, blocks].
    The new tokens of request r are its last ``query_start[r+1] - query_start[r]`` of ``seq_lens[r]``, and their
    K/V must have been written. Query head h reads KV head ``h // (heads / kv_heads)``. Scores are multiplied by
    ``scale``, by default ``head_dim ** -0.5``. With a ``window``, position p sees keys [p - window + 1, p] only.
    ``tree`` is (start of each request's tree, places [n, depth]), see ``models.batch.TreePlaces``; a request without a
    tree starts it at its length.
    Returns [n, heads, head_dim].
    """
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.empty_like(query)
    for r, seq_len in enumerate(seq_lens):
        start, stop = query_start[r], query_start[r + 1]
        rows = stop - start
        tree_start = seq_len if tree is None else tree[0][r]
        # Blocks wholly before the first row's window are not read; keys are places [begin, seq_len).
        first = 0 if window is None else max(0, min(seq_len - rows, tree_start) + 1 - window) // block_size
        begin = first * block_size
        blocks = block_tables[r, first : -(-seq_len // block_size)]
        # [kv_heads, seq_len - begin, head_dim]
        keys = key_cache[blocks].view(-1, num_kv_heads, head_dim)[: seq_len - begin].transpose(0, 1).to(query.dtype)
        values = value_cache[blocks].view(-1, num_kv_heads, head_dim)[: seq_len - begin].transpose(0, 1).to(query.dtype)
        # [kv_heads, rows * group, head_dim]
        q = (
            query[start:stop]
            .view(rows, num_kv_heads, group, head_dim)
            .transpose(0, 1)
            .reshape(num_kv_heads, -1, head_dim)
        )
        scores = (q @ keys.transpose(1, 2)).float() * scale
        if rows > 1 or window is not None or tree_start < seq_len:
            own = torch.arange(seq_len - rows, seq_len, device=query.device)[:, None]
            places = torch.arange(begin, seq_len, device=query.device).expand(rows, -1)
            if tree is not None and tree_start < seq_len:
                places, own = _tree_positions(places, own, begin, tree_start, tree[1][start:stop])
            hidden = places > own  # [rows, seq_len - begin]
            if window is not None:
                hidden |= places <= own - window
            scores = scores.masked_fill(hidden.repeat_interleave(group, dim=0), float("-inf"))
        mixed = torch.softmax(scores, dim=-1).to(values.dtype) @ values
        out[start:stop] = (
            mixed.view(num_kv_heads, rows, group, head_dim).transpose(0, 1).reshape(rows, num_heads, head_dim)
        )
    return out


def _tree_positions(places: Tensor, own: Tensor, begin: int, tree_start: int, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """The position of each key for each row, and each row's own [rows, 1]; what a row does not see lies beyond it.

    ``places`` [rows, keys] are those of the keys, from ``begin`` on, ``own`` [rows, 1] of the rows, ``nodes`` [rows,
    depth] as in ``TreePlaces``. A row's own place ends its path, so its depth is where that stands.
    """
    unseen = torch.iinfo(torch.int64).max
    positions = places.where(places < tree_start, unseen)
    own = own.clone()
    for row, path in enumerate(nodes.tolist()):
        place = int(own[row])
        if place < tree_start:
            continue
        for depth, at in enumerate(path[: path.index(place) + 1]):
            positions[row, at - begin] = own[row] = tree_start + depth
    return positions, own


def max_and_argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value and its id for each row of ``logits`` [n, vocab]; among equals the lowest id.

    A row that holds a NaN gives a NaN as its largest value; its id then means nothing.
    """
    largest = logits.amax(dim=-1)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    lowest = torch.where(logits == largest[:, None], ids, logits.shape[-1]).amin(dim=-1)
    return largest, lowest
