"""The native kernel library (C++, src/outrider/csrc): types for the checker.

Arrays are C-contiguous and enter without a copy. bfloat16 is uint16 of the same bits. A shape, type or value that does
not fit raises ValueError or TypeError.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

class PackedMatrix:
    """A weight matrix [rows, cols] (out, in) in one of the packed formats."""

    @property
    def format(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def data(self) -> NDArray[np.uint8]:
        """The packed bytes, read-only, not copied: what ``from_data`` takes."""
    @staticmethod
    def from_data(format: str, rows: int, cols: int, data: Array) -> PackedMatrix:
        """A matrix over packed bytes (uint8, aligned to 4), which it keeps alive and does not copy."""

class KVCache:
    """K and V of all layers, each [num_blocks, block_size, kv_heads, head_dim], float32 or float16."""

    def __init__(self, keys: Sequence[Array], values: Sequence[Array]) -> None: ...
    def move(self, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Copy K and V of each slot to another, in every layer, one after another."""

class Model:
    """A whole decoder. A layer is a mapping with

    q k v o gate up down            PackedMatrix, each with an optional ``<name>_bias`` [out] float32
    attn_norm mlp_norm              [hidden] float32
    q_norm k_norm                   [head_dim], optional
    post_attn_norm post_mlp_norm    [hidden], optional: norms of a sublayer's output, before the residual
    rope                            inverse frequencies [head_dim / 2] float32
    window                          int, optional; 0 sees everything
    """

    def __init__(
        self,
        embed: PackedMatrix,
        lm_head: PackedMatrix | None,
        final_norm: Array,
        layers: Sequence[Mapping[str, object]],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        attention_scale: float,
        embedding_scale: float = 1.0,
        act: str = "silu",
    ) -> None: ...
    @property
    def threads(self) -> int: ...
    def forward(
        self,
        cache: KVCache,
        token_ids: Array,
        positions: Array,
        slot_mapping: Array,
        query_start: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Array,
        logit_rows: Array,
        logits: Array,
        *,
        tree: Array | None = None,
        tree_start: Sequence[int] | None = None,
        capture: Sequence[int] = (),
        hidden: Array | None = None,
    ) -> None:
        """Write the rows' K/V and fill ``logits`` [num_logits, rows of lm_head] float32.

        token_ids, positions, slot_mapping [rows] int64; block_tables [requests, max_blocks] int64; logit_rows
        [num_logits] int64. A row at position p >= tree_start[request] is a node of a tree: tree [rows, depth] int64
        holds the places in the request of its keys at the positions from tree_start to p. Every other row's position is
        its place. hidden [num_logits, len(capture), hidden] float32 receives the residual stream of the logits' rows at
        the input of the layers in capture; the number of layers means the last one's output, before the final norm.
        """

def pack_gguf(raw: Array, ggml_type: int, rows: int, cols: int, order: Array | None = None) -> PackedMatrix: ...
def pack_float(weights: Array, format: str, order: Array | None = None) -> PackedMatrix: ...
def embedding(matrix: PackedMatrix, ids: Array) -> NDArray[np.float32]: ...
def linear(
    x: Array, matrices: Sequence[PackedMatrix], biases: Sequence[Array | None] | None = None
) -> list[NDArray[np.float32]]: ...
def rms_norm(x: Array, weight: Array, eps: float) -> NDArray[np.float32]: ...
def act_mul(gate_up: Array, act: str) -> NDArray[np.float32]: ...
def rotary(x: Array, cos: Array, sin: Array) -> NDArray[np.float32]: ...
def argmax(x: Array) -> tuple[list[int], NDArray[np.float32]]: ...
def log_sum_exp(x: Array) -> NDArray[np.float32]: ...
def attention(
    query: Array,
    keys: Array,
    values: Array,
    block_tables: Array,
    query_start: Sequence[int],
    seq_lens: Sequence[int],
    positions: Array,
    scale: float,
    window: int = 0,
    tree: Array | None = None,
    tree_start: Sequence[int] | None = None,
) -> NDArray[np.float32]: ...
def skip_strings(data: Array, at: int, count: int) -> int:
    """The place after ``count`` strings of GGUF bytes (uint8) from ``at`` on, each a 64-bit length and its bytes.

    One more than the number of bytes where they end before.
    """

def read_all(data: Array) -> int: ...
def num_threads() -> int: ...
def set_num_threads(threads: int, fixed: bool = False) -> None:
    """Work with at most ``threads``; a model's passes choose how many by measured times, unless ``fixed``.

    Raises ``ValueError`` for fewer than 1.
    """

def set_default_threads(threads: int) -> None:
    """The limit where neither ``set_num_threads`` nor ``OUTRIDER_NUM_THREADS`` sets one; ``ValueError`` below 1."""

class ThreadChoice:
    """How many threads work on passes, by the seconds that passes of as many ``rows`` took before."""

    def __init__(self) -> None: ...
    def choose(self, rows: int, limit: int) -> int: ...
    def record(self, rows: int, threads: int, seconds: float) -> None: ...
    @property
    def threads(self) -> int: ...

def variant() -> str: ...
def set_variant(name: str) -> None: ...
def available_variants() -> list[str]: ...

class SuffixIndex:
    """Where the latest tokens occurred before, and what followed; keeps the latest ``limit`` tokens.

    A draft is (token ids, chances): the estimated chance of each token to be reached and accepted. It ends before the
    first token whose chance is below ``floor``.
    """

    def __init__(self, limit: int) -> None: ...
    @property
    def size(self) -> int:
        """Tokens kept, ends of texts included."""
    @property
    def nbytes(self) -> int: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    def end_text(self) -> None: ...
    def propose(self, max_tokens: int, *, min_match: int = 1, floor: float = 0.0) -> tuple[list[int], list[float]]:
        """What may follow the latest text here."""
    def propose_after(
        self, tail: Sequence[int], max_tokens: int, *, min_match: int = 1, floor: float = 0.0
    ) -> tuple[list[int], list[float]]:
        """What may follow ``tail``, the latest tokens of some other text."""

def probabilities(
    logits: Array, **options: float
) -> NDArray[np.float64] | tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Probabilities [vocab], or ids and their probabilities if a stage cuts tokens off.

    ``logits`` [vocab] are float32 or float64. ``options`` are temperature, top_k, top_p, min_p, typical_p. None if a
    logit is NaN or +inf, or if all are -inf.
    """

def draw_token(logits: Array, key: int, **options: float) -> int | None:
    """The draw by that distribution; None where there is none."""

def token_report(logits: Array, token: int, num_top: int) -> tuple[float, int, list[tuple[int, float]]] | None:
    """(log-probability, rank) of ``token``, and the most probable tokens with theirs; None as for ``probabilities``."""

def draw(weights: Array, key: int) -> tuple[int, float]:
    """(index, sum of the weights): the draw of ``KeyedNoise``; -1 if the weights allow none."""
