"""Which file or folder a model reference means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.models.loader import resolve as resolve_module
from outrider.models.loader.cache import atomic_file, cache_directory
from outrider.models.loader.packaged import PackagedModel, Progress
from outrider.models.loader.resolve import ModelSource, resolve


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


def test_aliases_come_first_and_ignore_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ensured(model: PackagedModel, progress: Progress | None) -> Path:
        return tmp_path / model.alias

    monkeypatch.setattr(resolve_module, "ensure", ensured)
    monkeypatch.chdir(tmp_path)
    touch(tmp_path / "smollm2-135m-instruct" / "config.json")
    expected = ModelSource("gguf", tmp_path / "smollm2-135m-instruct", "smollm2-135m-instruct")
    assert resolve("SmolLM2-135M-Instruct") == expected


def test_files_and_folders(tmp_path: Path) -> None:
    file = touch(tmp_path / "one" / "tiny.Q4_1.gguf")
    folder = touch(tmp_path / "two" / "config.json").parent
    assert resolve(str(file)) == ModelSource("gguf", file, "tiny.Q4_1")
    assert resolve(str(file.parent)) == ModelSource("gguf", file, "one")
    assert resolve(str(folder)) == ModelSource("huggingface", folder, "two")


def test_a_relative_folder_of_two_parts_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "org" / "name" / "config.json")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == ModelSource("huggingface", Path("org/name"), "name")


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda at: touch(at / "a.bin"), ModelFormatError, "is not a .gguf file"),
        (lambda at: touch(at / "x" / "readme").parent, ModelNotFoundError, "neither config.json nor a .gguf file"),
        (
            lambda at: (touch(at / "x" / "a.gguf"), touch(at / "x" / "b.gguf"))[0].parent,
            ModelNotFoundError,
            "holds 2 .gguf files; name one of them",
        ),
        (
            lambda at: at / "absent.gguf",
            ModelNotFoundError,
            "no model .*absent.gguf'; give an alias .smollm2-135m-instruct",
        ),
    ],
)
def test_what_is_no_model_is_named(
    tmp_path: Path, make: Callable[[Path], Path], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        resolve(str(make(tmp_path)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reference", ["nonsense", "", "a/b/c", "org/model.gguf", "../x"])
def test_unknown_names_say_what_is_allowed(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "empty"
    inside.mkdir()
    monkeypatch.chdir(inside)
    with pytest.raises(ModelNotFoundError, match="give an alias .*, an existing .gguf file, a folder .* or a hub id"):
        resolve(reference)


def test_a_hub_model_that_is_not_here_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="'org/never-there' is not in the local hub cache and HF_HUB_OFFLINE"):
        resolve("org/never-there")


def test_a_hub_model_that_is_here_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def snapshot(hub_id: str, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        return str(touch(tmp_path / hub_id / "config.json").parent)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("org/name") == ModelSource("huggingface", tmp_path / "org" / "name", "org/name")


def test_what_the_hub_says_is_passed_on_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(hub_id: str, allow_patterns: list[str]) -> str:
        raise OSError("\n401 no such repository\nsecond line")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ModelNotFoundError, match="'org/name': 401 no such repository; check") as caught:
        resolve("org/name")
    assert "\n" not in str(caught.value)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("OUTRIDER_CACHE")
    assert cache_directory() == tmp_path / "xdg" / "outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "outrider"


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = touch(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [path]
