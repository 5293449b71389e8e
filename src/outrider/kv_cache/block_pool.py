"""Fixed-size KV blocks: which are free, and how many holders each other one has. No tensors, no requests."""

from __future__ import annotations

from outrider.errors import IntegrityError


class BlockPool:
    """Hands out block ids ``0 .. num_blocks - 1``.

    A block is free, or held by one or more holders (its reference count). The free list is a stack, so that a
    block just freed, which is likely still in the processor's cache, is the next to be used.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks} must be at least 1")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Return ``count`` block ids, each with one holder. Raises ``IntegrityError`` if too few are free."""
        if count > len(self._free):
            raise IntegrityError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def release(self, blocks: list[int]) -> None:
        """Drop one holder of each block; a block without holders is free again."""
        for block in blocks:
            if self._ref_counts[block] < 1:
                raise IntegrityError(f"block {block} released but not held")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.append(block)

    def ref_count(self, block: int) -> int:
        """How many holders ``block`` has."""
        return self._ref_counts[block]

    def check_integrity(self, held: dict[int, int]) -> None:
        """Raise ``IntegrityError`` unless free + held = all and ``held`` (block -> holders) is what is counted."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("a block is twice in the free list")
        for block in range(self.num_blocks):
            counted, expected = self._ref_counts[block], held.get(block, 0)
            if counted != expected:
                raise IntegrityError(f"block {block} has reference count {counted} but {expected} holders")
            if (block in free) != (counted == 0):
                raise IntegrityError(f"block {block} has reference count {counted}, free: {block in free}")
