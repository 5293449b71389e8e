"""Limits of control groups, read from made-up trees of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.machine import GroupLimits, available_memory, group_limits, usable_processors

V1_CPU = "31 23 0:28 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "32 23 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "33 23 0:30 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw"
GIB = 1 << 30


def tree(root: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Path:
    """A root with 8 GiB of memory, 6 of them available."""
    everything = {
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "\n".join(mounts) + "\n",
        "proc/meminfo": f"MemTotal: {8 << 20} kB\nMemFree: 10 kB\nMemAvailable:    {6 << 20} kB\n",
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in everything.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def test_without_any_file_the_affinity_and_the_system_decide(tmp_path: Path) -> None:
    assert usable_processors(tmp_path) == 8
    assert available_memory(tmp_path) > 0
    assert group_limits(tmp_path) == GroupLimits(None, None)


@pytest.mark.parametrize(
    ("quota", "expected"), [("50000 100000", 1), ("150000 100000", 2), ("1000 100000", 1), ("9900000 100000", 8)]
)
def test_a_quota_of_version_2_is_rounded_up(tmp_path: Path, quota: str, expected: int) -> None:
    assert usable_processors(tree(tmp_path, "0::/\n", [V2], {"cpu.max": f"{quota}\n"})) == expected


@pytest.mark.parametrize("text", ["max 100000\n", "", "nonsense\n", "50000\n", "50000 0\n"])
def test_what_is_no_quota_sets_no_limit(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, "0::/\n", [V2], {"cpu.max": text})
    assert usable_processors(root) == 8
    assert group_limits(root).processors is None


def test_the_strictest_ancestor_of_version_2_counts(tmp_path: Path) -> None:
    files = {
        "a/cpu.max": "200000 100000\n",
        "a/b/cpu.max": "max 100000\n",
        "a/memory.max": f"{2 * GIB}\n",
        "a/memory.current": f"{GIB}\n",
        "a/memory.stat": f"anon 5\ninactive_file {GIB // 4}\nactive_file 7\n",
        "a/b/memory.max": f"{4 * GIB}\n",
        "a/b/memory.current": f"{GIB // 2}\n",
    }
    root = tree(tmp_path, "0::/a/b\n", [V2], files)
    assert usable_processors(root) == 2
    assert available_memory(root) == GIB + GIB // 4
    assert group_limits(root) == GroupLimits(2.0, 2 * GIB)


def test_memory_high_limits_as_memory_max_does(tmp_path: Path) -> None:
    files = {"memory.max": "max\n", "memory.high": f"{3 * GIB}\n", "memory.current": f"{GIB}\n"}
    assert available_memory(tree(tmp_path, "0::/\n", [V2], files)) == 2 * GIB


def test_the_system_can_have_less_than_the_group(tmp_path: Path) -> None:
    files = {"memory.max": f"{7 * GIB}\n", "memory.current": "0\n"}
    assert available_memory(tree(tmp_path, "0::/\n", [V2], files)) == 6 * GIB


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"memory.max": f"{GIB}\n", "memory.current": f"{2 * GIB}\n"}
    assert available_memory(tree(tmp_path, "0::/\n", [V2], files)) == 0


def test_version_1(tmp_path: Path) -> None:
    files = {
        "cpu/job/cpu.cfs_quota_us": "250000\n",
        "cpu/job/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/job/memory.limit_in_bytes": f"{GIB}\n",
        "memory/job/memory.usage_in_bytes": f"{GIB // 2}\n",
        "memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 8}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    }
    root = tree(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n", [V1_CPU, V1_MEMORY], files)
    assert usable_processors(root) == 3
    assert available_memory(root) == GIB // 2 + GIB // 8
    assert group_limits(root) == GroupLimits(2.5, GIB)


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "5\n"}
    root = tree(tmp_path, "4:memory:/\n", [V1_MEMORY], files)
    assert available_memory(root) == 6 * GIB
    assert group_limits(root) == GroupLimits(None, None)


def test_both_versions_at_once(tmp_path: Path) -> None:
    files = {
        "memory/pod/memory.limit_in_bytes": f"{GIB}\n",
        "memory/pod/memory.usage_in_bytes": "0\n",
        "unified/pod/cpu.max": "100000 100000\n",
    }
    unified = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    root = tree(tmp_path, "4:memory:/pod\n0::/pod\n", [V1_MEMORY, unified], files)
    assert (usable_processors(root), available_memory(root)) == (1, GIB)


@pytest.mark.parametrize(
    ("mounted", "group"),
    [("/docker/x", "/docker/x"), ("/docker/x", "/elsewhere"), ("/", "/../../outside")],
)
def test_a_container_that_sees_its_own_group_at_the_mount(tmp_path: Path, mounted: str, group: str) -> None:
    mount = V2.replace("0:30 / ", f"0:30 {mounted} ")
    assert usable_processors(tree(tmp_path, f"0::{group}\n", [mount], {"cpu.max": "100000 100000\n"})) == 1


def test_a_group_inside_of_what_is_mounted(tmp_path: Path) -> None:
    mount = V2.replace("0:30 / ", "0:30 /docker/x ")
    root = tree(tmp_path, "0::/docker/x/inner\n", [mount], {"inner/cpu.max": "100000 100000\n"})
    assert usable_processors(root) == 1


def test_a_mount_with_a_blank_in_its_name(tmp_path: Path) -> None:
    mount = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/a\\040b")
    assert usable_processors(tree(tmp_path, "0::/\n", [mount], {"a b/cpu.max": "100000 100000\n"})) == 1
