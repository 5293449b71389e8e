"""The weights that a configuration asks for, by canonical name. Knows nothing about any file format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig

Shape = tuple[int, ...]


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Canonical name -> shape of every weight; matrices are [out, in]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {"embed": (config.vocab_size, hidden), "final_norm": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["lm_head"] = (config.vocab_size, hidden)
    layer: dict[str, Shape] = {
        "attn_norm": (hidden,),
        "q": (query, hidden),
        "k": (key, hidden),
        "v": (key, hidden),
        "o": (hidden, query),
        "mlp_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if config.attention_bias:
        layer |= {"q_bias": (query,), "k_bias": (key,), "v_bias": (key,)}
    if config.qk_norm:
        layer |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if config.sandwich_norms:
        layer |= {"post_attn_norm": (hidden,), "post_mlp_norm": (hidden,)}
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def check_weights(path: Path, wanted: Mapping[str, tuple[str, Shape]], found: Mapping[str, Shape]) -> None:
    """Check a file's tensors against the model's, all by the file's own names.

    ``wanted`` maps canonical name -> (name in the file, shape); ``found`` maps name in the file -> shape.
    Raises ``ModelFormatError`` naming the first tensors that are missing, not known, or of another shape.
    """
    names = {name for name, _ in wanted.values()}
    if missing := [name for name, _ in wanted.values() if name not in found]:
        raise ModelFormatError(f"{path}: {_listed(missing)} missing; the file is incomplete, fetch it again")
    if surplus := sorted(name for name in found if name not in names):
        raise ModelFormatError(f"{path}: {_listed(surplus)} not known for this architecture; it is a model variant")
    for name, shape in wanted.values():
        if found[name] != shape:
            raise ModelFormatError(
                f"{path}: tensor {name!r} has shape {list(found[name])}, expected {list(shape)}; "
                "configuration and weights do not belong together"
            )


def _listed(names: Iterable[str], most: int = 3) -> str:
    """``tensor 'a'`` or ``4 tensors ('a', 'b', 'c', ...)``, with the verb that follows."""
    names = list(names)
    if len(names) == 1:
        return f"tensor {names[0]!r} is"
    shown = ", ".join(repr(name) for name in names[:most]) + (", ..." if len(names) > most else "")
    return f"{len(names)} tensors ({shown}) are"
