"""Block tables: one property each, with the values in the message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import IntegrityError
from outrider.kv_cache.block_pool import BlockPool
from outrider.kv_cache.manager import KVCacheManager

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["allocate", "truncate", "free"]), st.sampled_from("abc"), st.integers(0, 40)),
    max_size=60,
)


@given(num_blocks=st.integers(1, 12), block_size=st.integers(1, 5), operations=OPERATIONS)
def test_any_sequence_of_operations_keeps_the_books(
    num_blocks: int, block_size: int, operations: list[tuple[str, str, int]]
) -> None:
    kv = KVCacheManager(num_blocks, block_size)
    held = dict.fromkeys("abc", 0)
    for operation, request, tokens in operations:
        blocks = -(-tokens // block_size)
        if operation == "allocate":
            fits = max(blocks, held[request]) - held[request] <= kv.num_free_blocks
            assert kv.can_allocate(request, tokens) == fits
            assert kv.allocate(request, tokens) == fits
            held[request] = max(held[request], blocks) if fits else held[request]
        elif operation == "truncate":
            kv.truncate(request, tokens)
            held[request] = min(held[request], blocks)
        else:
            kv.free(request)
            held[request] = 0
        kv.check_integrity()
        assert {name: len(kv.block_table(name)) for name in held} == held
        assert kv.num_free_blocks == num_blocks - sum(held.values())
    slots = [slot for name, count in held.items() for slot in kv.slots(name, 0, count * block_size)]
    assert len(set(slots)) == len(slots), f"a slot belongs to two tokens: {sorted(slots)}"
    assert all(0 <= slot < num_blocks * block_size for slot in slots)


def test_slots_follow_the_block_table_and_survive_growth() -> None:
    kv = KVCacheManager(num_blocks=8, block_size=2)
    assert kv.allocate("a", 3)
    before = kv.slots("a", 0, 3)
    assert kv.allocate("b", 5)
    assert kv.allocate("a", 7)
    table = kv.block_table("a")
    assert kv.slots("a", 0, 7) == [table[i // 2] * 2 + i % 2 for i in range(7)]
    assert kv.slots("a", 0, 3) == before


@pytest.mark.parametrize("keep", range(7))
def test_truncate_keeps_exactly_the_blocks_of_the_first_tokens(keep: int) -> None:
    kv = KVCacheManager(num_blocks=4, block_size=2)
    assert kv.allocate("a", 6)
    before = kv.slots("a", 0, keep)
    kv.truncate("a", keep)
    assert len(kv.block_table("a")) == -(-keep // 2)
    assert kv.slots("a", 0, keep) == before
    kv.truncate("a", 100)  # more than there is: nothing to give back
    assert len(kv.block_table("a")) == -(-keep // 2)


def test_a_slot_that_was_not_allocated_is_refused() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=2)
    assert kv.allocate("a", 2)
    with pytest.raises(IntegrityError, match="token 2 of 'a'"):
        kv.slots("a", 0, 3)


def test_failed_allocation_changes_nothing() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=2)
    assert kv.allocate("a", 4)
    assert not kv.allocate("a", 7)
    assert not kv.allocate("b", 3)
    assert len(kv.block_table("a")) == 2
    kv.check_integrity(live=["a"])


def test_integrity_check_finds_strangers_and_lost_blocks() -> None:
    kv = KVCacheManager(num_blocks=3, block_size=2)
    assert kv.allocate("a", 2)
    with pytest.raises(IntegrityError, match=r"\['a'\]"):
        kv.check_integrity(live=["b"])
    kv.block_table("a").pop()
    with pytest.raises(IntegrityError, match="reference count 1 but 0 holders"):
        kv.check_integrity()


def test_a_block_released_twice_is_refused() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(IntegrityError, match="not held"):
        pool.release(blocks)
    with pytest.raises(IntegrityError, match="3 blocks requested, but only 2 are free"):
        pool.allocate(3)
