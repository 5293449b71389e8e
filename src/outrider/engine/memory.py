"""The memory budget: weights, draft weights and both KV caches, settled before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.config import EngineConfig
from outrider.errors import ConfigError
from outrider.machine import available_memory
from outrider.models.base import CausalModel

FREE_MEMORY_SHARE = 0.25
"""Of the memory that is free at start, the share that the KV caches may take unless told otherwise."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by what they are for. A KV cache's count as it fills: its memory is touched block by block."""

    weights: int
    draft_weights: int
    num_blocks: int
    block_size: int
    bytes_per_block: int
    draft_bytes_per_block: int

    @property
    def kv_cache(self) -> int:
        """The target's KV cache when full."""
        return self.num_blocks * self.bytes_per_block

    @property
    def draft_kv_cache(self) -> int:
        """The draft model's KV cache when full."""
        return self.num_blocks * self.draft_bytes_per_block

    @property
    def num_tokens(self) -> int:
        """Tokens that the caches hold."""
        return self.num_blocks * self.block_size

    def describe(self) -> str:
        """One line for the start-up report."""
        parts = [f"weights {_mib(self.weights)}"]
        if self.draft_weights:
            parts.append(f"draft weights {_mib(self.draft_weights)}")
        parts.append(f"KV cache up to {_mib(self.kv_cache)} for {self.num_tokens:,} tokens")
        if self.draft_kv_cache:
            parts.append(f"draft KV cache up to {_mib(self.draft_kv_cache)}")
        total = self.weights + self.draft_weights + self.kv_cache + self.draft_kv_cache
        return f"memory: {', '.join(parts)}; {_mib(total)} in all"


def plan_memory(config: EngineConfig, target: CausalModel, draft: CausalModel | None, max_model_len: int) -> MemoryPlan:
    """As many blocks as ``max_num_seqs`` full requests need, within what the caches may take.

    A block of the target's cache comes with one of the draft's, so that neither runs out before the other. Raises
    ``ConfigError`` if there is room for no block.
    """
    size = config.block_size
    own = target.bytes_per_block(size)
    drafts = 0 if draft is None else draft.bytes_per_block(size)
    wanted = config.max_num_seqs * -(-max_model_len // size)
    if config.kv_cache_memory is not None:
        affordable = config.kv_cache_memory // (own + drafts)
    else:
        affordable = int(_free_memory(target.device) * FREE_MEMORY_SHARE) // (own + drafts)
    if affordable < 1:
        raise ConfigError(
            f"the KV cache has room for no block of {size} tokens, which takes {own + drafts} bytes; "
            f"raise kv_cache_memory"
        )
    return MemoryPlan(
        weights=weight_bytes(target),
        draft_weights=0 if draft is None else weight_bytes(draft),
        num_blocks=min(wanted, affordable),
        block_size=size,
        bytes_per_block=own,
        draft_bytes_per_block=drafts,
    )


def weight_bytes(model: CausalModel) -> int:
    """Bytes of a model's weights; 0 if it does not say."""
    return int(getattr(model, "weight_bytes", 0))


def _free_memory(device: str) -> int:
    if device != "cpu":
        from outrider.torch_backend.device import free_memory

        return free_memory(device)
    return available_memory()


def _mib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
