"""Shared blocks: what is found is what was written, whoever wrote it, and nothing that was rolled back is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import IntegrityError
from outrider.kv_cache.manager import KVCacheManager


class WrittenCache:
    """Requests of random text over a manager, and a memory in which each slot holds the text up to its token."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.kv = KVCacheManager(num_blocks, block_size)
        self.memory: dict[int, tuple[int, ...]] = {}
        self.tokens: dict[str, list[int]] = {}

    def write(self, name: str, start: int, tokens: list[int]) -> None:
        for place, slot in enumerate(self.kv.slots(name, start, len(tokens)), start):
            self.memory[slot] = tuple(tokens[: place + 1])

    def begin(self, name: str, tokens: list[int]) -> None:
        if name in self.tokens:
            return
        found = self.kv.reuse(name, tokens)
        assert found < len(tokens)
        assert found % self.kv.block_size == 0
        for place, slot in enumerate(self.kv.slots(name, 0, found)):
            assert self.memory[slot] == tuple(tokens[: place + 1]), f"token {place} of {name} is another text's"
        if not self.kv.allocate(name, len(tokens)):
            self.kv.free(name)
            return
        self.tokens[name] = tokens
        self.write(name, found, tokens)
        self.kv.publish(name, tokens, len(tokens))

    def extend(self, name: str, drafts: list[int], accepted: int) -> None:
        tokens = self.tokens.get(name)
        if tokens is None or not self.kv.allocate(name, len(tokens) + len(drafts)):
            return
        self.write(name, len(tokens), tokens + drafts)
        tokens += drafts[:accepted]
        self.kv.truncate(name, len(tokens))
        self.kv.publish(name, tokens, len(tokens))

    def end(self, name: str) -> None:
        if self.tokens.pop(name, None) is not None:
            self.kv.free(name)


TEXT = st.lists(st.integers(0, 1), min_size=1, max_size=14)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from("abcd"), TEXT, st.just(0)),
        st.tuples(st.just("extend"), st.sampled_from("abcd"), TEXT, st.integers(0, 14)),
        st.tuples(st.just("end"), st.sampled_from("abcd"), st.just([]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(num_blocks=st.integers(1, 14), block_size=st.integers(1, 4), operations=OPERATIONS)
def test_what_is_found_is_always_what_was_written(
    num_blocks: int, block_size: int, operations: list[tuple[str, str, list[int], int]]
) -> None:
    cache = WrittenCache(num_blocks, block_size)
    for operation, name, tokens, accepted in operations:
        if operation == "begin":
            cache.begin(name, list(tokens))
        elif operation == "extend":
            cache.extend(name, list(tokens), accepted)
        else:
            cache.end(name)
        cache.kv.check_integrity(live=cache.tokens)
        for each, held in cache.tokens.items():
            for place, slot in enumerate(cache.kv.slots(each, 0, len(held))):
                assert cache.memory[slot] == tuple(held[: place + 1]), f"token {place} of {each} was overwritten"
    for name in list(cache.tokens):
        cache.end(name)
    cache.kv.check_integrity(live=())
    assert cache.kv.num_free_blocks == num_blocks


def cached(num_blocks: int, *texts: list[int]) -> KVCacheManager:
    """Blocks of two tokens after requests of these texts have come and gone."""
    kv = KVCacheManager(num_blocks, 2)
    for text in texts:
        kv.reuse("old", text)
        assert kv.allocate("old", len(text))
        kv.publish("old", text, len(text))
        kv.free("old")
    return kv


def test_the_beginning_stays_longest_and_the_least_recently_used_goes_first() -> None:
    kv = cached(4, [1, 2, 3, 4], [5, 6, 7, 8])
    assert len(kv._pool._cached) == 4
    assert kv.allocate("new", 2), "takes the end of the older text"
    assert kv.reuse("a", [1, 2, 3, 4, 9]) == 2
    assert kv.reuse("b", [5, 6, 7, 8, 9]) == 4
    kv.free("a")
    kv.free("b")
    assert kv.allocate("new", 4), "and then its beginning, which was released before the other text"
    assert kv.reuse("c", [1, 2, 3, 4, 9]) == 0
    assert kv.reuse("d", [5, 6, 7, 8, 9]) == 4


def test_equal_tokens_after_another_beginning_are_not_found() -> None:
    kv = cached(8, [1, 2, 3, 4])
    assert kv.reuse("a", [9, 9, 3, 4, 5]) == 0
    assert kv.reuse("b", [1, 2, 3, 9, 5]) == 2


def test_nothing_is_shared_where_it_is_turned_off() -> None:
    kv = KVCacheManager(8, 2, prefix_caching=False)
    assert kv.allocate("a", 4)
    kv.publish("a", [1, 2, 3, 4], 4)
    assert kv.reuse("b", [1, 2, 3, 4, 5]) == 0
    kv.free("a")
    assert len(kv._pool._cached) == 0


def test_a_block_rolled_back_in_its_middle_is_found_no_more_and_a_shared_one_never_is() -> None:
    kv = cached(8, [1, 2, 3, 4])
    assert kv.reuse("a", [1, 2, 3, 4, 5]) == 4
    kv.truncate("a", 3)
    assert kv.reuse("b", [1, 2, 3, 4, 5]) == 2
    kv.check_integrity(live=["a", "b"])
    with pytest.raises(IntegrityError, match="would be overwritten, but it has 2 holders"):
        kv.truncate("a", 1)


def test_dropping_what_is_cached_leaves_holders_alone() -> None:
    kv = cached(8, [1, 2, 3, 4])
    assert kv.reuse("a", [1, 2, 3]) == 2
    kv.drop_cached()
    kv.check_integrity(live=["a"])
    assert len(kv._pool._cached) == 0
    assert kv.reuse("b", [1, 2, 3]) == 0
    kv.free("a")
    assert kv.num_free_blocks == 8
