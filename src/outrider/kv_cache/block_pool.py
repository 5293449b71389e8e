"""Fixed-size KV blocks: which are free, which are kept for their content, and how many holders each other one has.

No tensors, no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import IntegrityError


class BlockPool:
    """Hands out block ids ``0 .. num_blocks - 1``.

    A block is *held* by one or more holders (its reference count); *cached*, without holders but with a key under which
    its content can be found again; or *free*. The free list is a stack, so that a block just freed, which is likely
    still in the processor's cache, is the next to be used. Cached blocks are taken only when no free one is left, the
    least recently used first.
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
        """Blocks that can be allocated now, cached ones among them."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks without holders whose content is kept."""
        return len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Return ``count`` block ids, each with one holder. Raises ``IntegrityError`` if too few are free."""
        if count > self.num_free:
            raise IntegrityError(f"{count} blocks asked for, {self.num_free} free")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one holder of each block; a block without holders is cached if it has a key, else free.

        The last ones count as least recently used: the end of a text is of use only together with its beginning.
        """
        for block in reversed(blocks):
            if self._ref_counts[block] < 1:
                raise IntegrityError(f"block {block} released but not held")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def publish(self, block: int, key: bytes) -> None:
        """Let a held block be found by ``key`` from now on; the first block of a key keeps it."""
        if self._ref_counts[block] < 1:
            raise IntegrityError(f"block {block} published but not held")
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key], self._key_of[block] = block, key

    def find(self, key: bytes) -> int | None:
        """The block published under ``key``, if its content is still there."""
        return self._block_of.get(key)

    def hold(self, block: int) -> None:
        """Add a holder to a block that was found."""
        if block not in self._key_of:
            raise IntegrityError(f"block {block} held by its content, but it has none")
        self._cached.pop(block, None)
        self._ref_counts[block] += 1

    def withdraw(self, block: int) -> None:
        """Let nobody find a block, as it will be written anew. Raises ``IntegrityError`` if it has more holders."""
        if block in self._key_of:
            if self._ref_counts[block] > 1:
                raise IntegrityError(f"block {block} is to be written, but has {self._ref_counts[block]} holders")
            del self._block_of[self._key_of.pop(block)]

    def ref_count(self, block: int) -> int:
        """How many holders ``block`` has."""
        return self._ref_counts[block]

    def drop_cached(self) -> None:
        """Forget the content of every block; those without holders are free."""
        self._free += self._cached
        self._cached.clear()
        self._key_of.clear()
        self._block_of.clear()

    def check_integrity(self, held: dict[int, int]) -> None:
        """Raise ``IntegrityError`` unless free + cached + held = all; ``held`` is block -> holders."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise IntegrityError("a block is twice in the free list")
        if {key: block for block, key in self._key_of.items()} != self._block_of:
            raise IntegrityError("the keys of blocks and the blocks of keys differ")
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
