"""Which blocks each request holds, and where its tokens lie. No tensors; knows requests only by their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from outrider.errors import IntegrityError
from outrider.kv_cache.block_pool import BlockPool


class KVCacheManager:
    """Block tables of all requests over one pool.

    Token ``i`` of a request lies in slot ``table[i // block_size] * block_size + i % block_size``.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size={block_size} must be at least 1")
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._tables: dict[str, list[int]] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds."""
        return self._pool.num_free

    @property
    def capacity(self) -> int:
        """Tokens that one request alone could hold."""
        return self._pool.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens need."""
        return -(-num_tokens // self.block_size)

    def can_allocate(self, request_id: str, num_tokens: int) -> bool:
        """True if ``allocate`` with the same arguments would succeed."""
        return self._missing(request_id, num_tokens) <= self._pool.num_free

    def allocate(self, request_id: str, num_tokens: int) -> bool:
        """Make room for tokens ``[0, num_tokens)`` of the request; False, with nothing changed, if there is none."""
        missing = self._missing(request_id, num_tokens)
        if missing > self._pool.num_free:
            return False
        table = self._tables.setdefault(request_id, [])
        if missing > 0:
            table.extend(self._pool.allocate(missing))
        return True

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks beyond tokens ``[0, num_tokens)``: the rollback of rejected drafts."""
        table = self._tables.get(request_id)
        if table is None:
            return
        keep = self.blocks_for(num_tokens)
        surplus = table[keep:]
        del table[keep:]
        self._pool.release(surplus)

    def free(self, request_id: str) -> None:
        """Give back everything the request holds; harmless if it holds nothing."""
        self._pool.release(self._tables.pop(request_id, []))

    def block_table(self, request_id: str) -> list[int]:
        """The request's blocks in order of its tokens (a view, do not change it)."""
        return self._tables.get(request_id, [])

    def slots(self, request_id: str, start: int, stop: int) -> list[int]:
        """The slots of tokens ``[start, stop)``. Raises ``IntegrityError`` if they were not allocated."""
        table, size = self.block_table(request_id), self.block_size
        if stop > len(table) * size:
            raise IntegrityError(f"token {stop - 1} of {request_id!r} has no slot: {len(table)} blocks of {size}")
        return [table[i // size] * size + i % size for i in range(start, stop)]

    def check_integrity(self, live: Iterable[str] | None = None) -> None:
        """Raise ``IntegrityError`` unless free + owned = total and only ``live`` requests (if given) own blocks."""
        held = Counter(block for table in self._tables.values() for block in table)
        self._pool.check_integrity(held)
        if live is not None:
            strangers = set(self._tables) - set(live)
            if strangers:
                raise IntegrityError(f"blocks held by requests that are gone: {sorted(strangers)}")

    def _missing(self, request_id: str, num_tokens: int) -> int:
        return self.blocks_for(num_tokens) - len(self.block_table(request_id))
