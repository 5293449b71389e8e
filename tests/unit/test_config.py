"""Settings as people write them."""

from __future__ import annotations

import pytest

from outrider.config import EngineConfig, parse_bytes
from outrider.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "count"),
    [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5kb", 1500), (" 64 MiB ", 64 << 20), ("77", 77), (4096, 4096)],
)
def test_kv_cache_memory_is_bytes_or_text(given: str | int, count: int) -> None:
    assert EngineConfig(model="m", kv_cache_memory=given).kv_cache_memory == count  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", "two", "2 GiB more", "-1", "5XB"])
def test_what_is_no_amount_of_memory_is_refused_by_name(given: str) -> None:
    assert parse_bytes(given) is None
    with pytest.raises(ConfigError, match=f"^engine setting kv_cache_memory={given!r}: must be a number .* '2GiB'"):
        EngineConfig(model="m", kv_cache_memory=given)  # type: ignore[arg-type]


def test_no_memory_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_cache_memory=0: input should be greater than or equal to 1"):
        EngineConfig(model="m", kv_cache_memory="0GiB")  # type: ignore[arg-type]
