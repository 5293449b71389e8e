"""Block tables of requests and the prefix cache. Handles no tensors; knows requests only by their ids."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from outrider.errors import IntegrityError
from outrider.kv_cache.block_pool import BlockPool


class KVCacheManager:
    """The block tables of all requests over one ``BlockPool``.

    Token ``i`` of a request is in slot ``table[i // block_size] * block_size + i % block_size``.

    Prefix cache: a full block of committed tokens is published under a hash of its tokens and all tokens before them. A
    request that starts with the same tokens shares the block. Only slots after the committed tokens are written, so a
    shared block is never written and never copied.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        if block_size < 1:
            raise ValueError(f"block_size={block_size} must be at least 1")
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._pool = BlockPool(num_blocks)
        self._tables: dict[str, list[int]] = {}
        self._keys: dict[str, list[bytes]] = {}
        self._hashed: tuple[list[int], list[bytes]] = ([], [])

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the pool."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request holds, including cached ones."""
        return self._pool.num_free

    @property
    def capacity(self) -> int:
        """The largest number of tokens that one request alone can hold."""
        return self._pool.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that ``num_tokens`` tokens need."""
        return -(-num_tokens // self.block_size)

    def can_allocate(self, request_id: str, num_tokens: int) -> bool:
        """True if ``allocate`` with the same arguments would succeed."""
        return self._missing(request_id, num_tokens) <= self._pool.num_free

    def allocate(self, request_id: str, num_tokens: int) -> bool:
        """Allocate blocks for tokens [0, num_tokens) of the request. False, with no change, if too few are free."""
        missing = self._missing(request_id, num_tokens)
        if missing > self._pool.num_free:
            return False
        table = self._tables.setdefault(request_id, [])
        if missing > 0:
            table.extend(self._pool.allocate(missing))
        return True

    def reuse(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Share cached blocks with the longest prefix of ``token_ids``; return the number of tokens in them.

        A request that already has blocks gets none. The last of ``token_ids`` is never included, because the next step
        must compute its logits.
        """
        if not self.prefix_caching or self._tables.get(request_id):
            return 0
        table: list[int] = []
        keys = self._keys_of(token_ids)
        for key in keys:
            block = self._pool.find(key)
            if block is None:
                break
            self._pool.hold(block)
            table.append(block)
        self._tables[request_id], self._keys[request_id] = table, keys[: len(table)]
        return len(table) * self.block_size

    def publish(self, request_id: str, token_ids: Sequence[int], num_computed: int) -> None:
        """Publish the full blocks of the committed tokens ``token_ids[:num_computed]``, whose K/V are computed."""
        if not self.prefix_caching:
            return
        keys = self._keys.setdefault(request_id, [])
        for index in range(len(keys), num_computed // self.block_size):
            start = index * self.block_size
            key = self._key(keys[-1] if keys else b"", token_ids[start : start + self.block_size])
            keys.append(key)
            self._pool.publish(self._tables[request_id][index], key)

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Free the blocks after tokens [0, num_tokens), to roll back rejected drafts.

        If ``num_tokens`` ends inside a published block, its remaining slots will be overwritten, so its key is removed.
        Raises ``IntegrityError`` if that block is shared.
        """
        table = self._tables.get(request_id)
        if table is None:
            return
        keep = self.blocks_for(num_tokens)
        surplus = table[keep:]
        del table[keep:]
        self._pool.release(surplus)
        keys = self._keys.get(request_id, [])
        if len(keys) * self.block_size > num_tokens:
            del keys[num_tokens // self.block_size :]
            if num_tokens % self.block_size:
                self._pool.withdraw(table[-1])

    def free(self, request_id: str) -> None:
        """Free all blocks of the request. No effect if it has none."""
        self._keys.pop(request_id, None)
        self._pool.release(self._tables.pop(request_id, []))

    def drop_cached(self) -> None:
        """Empty the prefix cache."""
        self._pool.drop_cached()

    def block_table(self, request_id: str) -> list[int]:
        """The block ids of the request, in token order. This is a view; do not change it."""
        return self._tables.get(request_id, [])

    def slots(self, request_id: str, start: int, stop: int) -> list[int]:
        """The slots of tokens [start, stop). Raises ``IntegrityError`` if a token has no allocated slot."""
        table, size = self.block_table(request_id), self.block_size
        if stop > len(table) * size:
            raise IntegrityError(f"token {stop - 1} of {request_id!r} has no slot: {len(table)} blocks of {size}")
        return [table[i // size] * size + i % size for i in range(start, stop)]

    def check_integrity(self, live: Iterable[str] | None = None) -> None:
        """Raise ``IntegrityError`` unless free + cached + owned = total and only ``live`` requests own blocks."""
        held = Counter(block for table in self._tables.values() for block in table)
        self._pool.check_integrity(held)
        if live is not None:
            strangers = {request_id for request_id, table in self._tables.items() if table} - set(live)
            if strangers:
                raise IntegrityError(f"requests that are not running hold blocks: {sorted(strangers)}")

    def _missing(self, request_id: str, num_tokens: int) -> int:
        return self.blocks_for(num_tokens) - len(self.block_table(request_id))

    def _keys_of(self, token_ids: Sequence[int]) -> list[bytes]:
        """Keys of the full blocks of ``token_ids`` without its last token.

        The latest result is kept, because a waiting request asks again in every step until it is admitted.
        """
        tokens = list(token_ids)
        if self._hashed[0] != tokens:
            keys = [b""]
            for start in range(0, len(tokens) - self.block_size, self.block_size):
                keys.append(self._key(keys[-1], tokens[start : start + self.block_size]))
            self._hashed = tokens, keys[1:]
        return self._hashed[1]

    @staticmethod
    def _key(before: bytes, token_ids: Sequence[int]) -> bytes:
        """The key of a block after the block with key ``before``.

        The hash is cryptographic, so that a client cannot construct a text that collides with another client's text.
        """
        return hashlib.blake2b(before + array("q", token_ids).tobytes(), digest_size=20).digest()
