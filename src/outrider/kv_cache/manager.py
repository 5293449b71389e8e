"""Which blocks each request holds, and where its tokens lie. No tensors; knows requests only by their ids."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from outrider.errors import IntegrityError
from outrider.kv_cache.block_pool import BlockPool


class KVCacheManager:
    """Block tables of all requests over one pool.

    Token ``i`` of a request lies in slot ``table[i // block_size] * block_size + i % block_size``.

    The *prefix cache*: a full block of committed tokens is published under a hash of these tokens and of all before
    them, and a request that begins with the same tokens may share it. A shared block is never written to, because only
    places after the committed tokens are; so nobody needs a copy.
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
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds, those kept for their content among them."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that no request holds, kept for their content."""
        return self._pool.num_cached

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

    def reuse(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Give a request without blocks those that hold the beginning of ``token_ids``; return how many tokens.

        The last of ``token_ids`` is never among them, since it must be fed to go on from.
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
        """Let others share the full blocks of ``token_ids[:num_computed]``: committed tokens whose K/V are there."""
        if not self.prefix_caching:
            return
        keys = self._keys.setdefault(request_id, [])
        for index in range(len(keys), num_computed // self.block_size):
            start = index * self.block_size
            key = self._key(keys[-1] if keys else b"", token_ids[start : start + self.block_size])
            keys.append(key)
            self._pool.publish(self._tables[request_id][index], key)

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks beyond tokens ``[0, num_tokens)``: the rollback of rejected drafts.

        What is rolled back in the middle of a block is written anew, so nobody can find that block any more. Raises
        ``IntegrityError`` if it is shared already.
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
        """Give back everything the request holds; harmless if it holds nothing."""
        self._keys.pop(request_id, None)
        self._pool.release(self._tables.pop(request_id, []))

    def drop_cached(self) -> None:
        """Forget all content that requests without blocks could share."""
        self._pool.drop_cached()

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
        """Raise ``IntegrityError`` unless free + cached + owned = total, and only ``live`` requests own any."""
        held = Counter(block for table in self._tables.values() for block in table)
        self._pool.check_integrity(held)
        if live is not None:
            strangers = {request_id for request_id, table in self._tables.items() if table} - set(live)
            if strangers:
                raise IntegrityError(f"blocks held by requests that are gone: {sorted(strangers)}")

    def _missing(self, request_id: str, num_tokens: int) -> int:
        return self.blocks_for(num_tokens) - len(self.block_table(request_id))

    def _keys_of(self, token_ids: Sequence[int]) -> list[bytes]:
        """Keys of the full blocks of ``token_ids`` but for its last token; remembered for whoever asks in vain."""
        tokens = list(token_ids)
        if self._hashed[0] != tokens:
            keys = [b""]
            for start in range(0, len(tokens) - self.block_size, self.block_size):
                keys.append(self._key(keys[-1], tokens[start : start + self.block_size]))
            self._hashed = tokens, keys[1:]
        return self._hashed[1]

    @staticmethod
    def _key(before: bytes, token_ids: Sequence[int]) -> bytes:
        """A cryptographic hash, so that no text can be made to collide with another's."""
        return hashlib.blake2b(before + array("q", token_ids).tobytes(), digest_size=20).digest()
