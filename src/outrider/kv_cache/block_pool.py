"""Fixed-size KV blocks with reference counts: free, cached or held. Handles no tensors and no requests."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import IntegrityError


class BlockPool:
    """Allocates block ids in [0, num_blocks).

    A block is in one of three states. A *held* block has one or more holders; their number is its reference count. A
    *cached* block has no holders, and its content can be found by a key. All others are *free*.

    The free list is a stack: the block freed last is allocated first, because it is likely still in the processor's
    cache. Cached blocks are evicted only when the free list is empty, the least recently used first.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks} must be at least 1")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: dict[int, None] = {}  # in order of use, oldest first
        self._ref_counts = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated now, including cached ones."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Return ``count`` block ids, each with one holder. Raises ``IntegrityError`` if too few are free."""
        if count > self.num_free:
            raise IntegrityError(f"{count} blocks requested, but only {self.num_free} are free")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one holder of each block. A block without holders becomes cached if it has a key, else free.

        Later blocks count as less recently used, because the blocks of a prefix are useful without those after them,
        but not the reverse. Raises ``IntegrityError`` if a block is not held.
        """
        for block in reversed(blocks):
            if self._ref_counts[block] < 1:
                raise IntegrityError(f"block {block} is released but not held")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def publish(self, block: int, key: bytes) -> None:
        """Make a held block findable by ``key``. If another block has the key, that block keeps it.

        Raises ``IntegrityError`` if the block is not held.
        """
        if self._ref_counts[block] < 1:
            raise IntegrityError(f"block {block} is published but not held")
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key], self._key_of[block] = block, key

    def find(self, key: bytes) -> int | None:
        """The block with ``key``; None if there is none."""
        return self._block_of.get(key)

    def hold(self, block: int) -> None:
        """Add a holder to a block returned by ``find``. Raises ``IntegrityError`` if the block has no key."""
        if block not in self._key_of:
            raise IntegrityError(f"block {block} has no key, so it cannot be shared")
        self._cached.pop(block, None)
        self._ref_counts[block] += 1

    def withdraw(self, block: int) -> None:
        """Remove a block's key, because the block will be overwritten. Raises ``IntegrityError`` if it is shared."""
        if block in self._key_of:
            if self._ref_counts[block] > 1:
                raise IntegrityError(
                    f"block {block} would be overwritten, but it has {self._ref_counts[block]} holders"
                )
            del self._block_of[self._key_of.pop(block)]

    def drop_cached(self) -> None:
        """Remove the keys of all blocks and free the cached ones."""
        self._free += self._cached
        self._cached.clear()
        self._key_of.clear()
        self._block_of.clear()

    def check_integrity(self, held: dict[int, int]) -> None:
        """Raise ``IntegrityError`` unless free + cached + held = total. ``held`` maps a block to its holders."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("a block is in the free list twice")
        if {key: block for block, key in self._key_of.items()} != self._block_of:
            raise IntegrityError("the maps from blocks to keys and from keys to blocks differ")
        for block in range(self.num_blocks):
            counted, expected = self._ref_counts[block], held.get(block, 0)
            if counted != expected:
                raise IntegrityError(f"block {block} has reference count {counted} but {expected} holders")
            idle, cached = block in free, block in self._cached
            if (
                idle + cached != (counted == 0)
                or (block in self._key_of and idle)
                or (cached and block not in self._key_of)
            ):
                raise IntegrityError(
                    f"block {block} has reference count {counted}, free: {idle}, cached: {cached}, "
                    f"has a key: {block in self._key_of}"
                )

    def _evict(self) -> int:
        block = next(iter(self._cached))
        del self._cached[block]
        del self._block_of[self._key_of.pop(block)]
        return block
