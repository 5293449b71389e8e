"""The kernel measurement on small weights: what is in the report, not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from outrider.bench import kernels
from outrider.bench.kernels import Kernel, KernelReport, measure_kernels
from outrider.cli.bench import app
from outrider.errors import ConfigError

pytest.importorskip("outrider._native", reason="the native library is not built")


def ignore(text: str) -> None:
    """Progress is of no interest."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer of a few MB, and samples that take no time."""
    monkeypatch.setattr(kernels, "last_level_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(kernels, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(kernels, "SETTLE_SECONDS", 0.0)


def test_figures_of_a_kernel() -> None:
    kernel = Kernel("q", nbytes=5_000_000, weights=10_000_000, run=lambda which, rows: None, matrices=1)
    kernel.seconds = {1: {0: 0.001, 1: 0.002, 2: 0.004}, 4: {0: 0.002, 1: 0.003, 2: 0.008}}
    assert kernel.bits_per_weight == 4
    assert kernel.ms(1) == 2.0
    assert kernel.gb_s(1) == 2.5
    assert kernel.ratio(4).median == 2.0, "of the ratios 2, 1.5 and 2 by rounds, not of the medians"
    with pytest.raises(ValueError, match="q has no samples at 2 rows"):
        kernel.ratio(2)
    kernel.read_rates = {0: 10e9, 1: 4e9, 2: 2e9}
    report = KernelReport(256, 1, "x", 8_000_000, kernels=[kernel], rows=(1, 4))
    assert report.read_gb_s == 4.0
    share = report.to_dict()["kernels"][0]["rows"][0]["share_of_read"]
    assert share["median"] == 0.625, "of 5/10, 2.5/4 and 1.25/2 by rounds"


@pytest.mark.usefixtures("small")
def test_every_format_is_measured_at_every_row_count() -> None:
    from outrider.models.packing import BITS_PER_WEIGHT

    result = measure_kernels(size=256, repeats=2, formats=None, threads=1, report=ignore, rows=(1, 3))
    native = result.kernels[: len(BITS_PER_WEIGHT)]
    assert {kernel.name: kernel.bits_per_weight for kernel in native} == BITS_PER_WEIGHT
    for kernel in result.kernels:
        assert sorted(kernel.seconds) == [1, 3], kernel.name
        assert len(kernel.seconds[3]) == 2, kernel.name
        assert kernel.matrices * kernel.nbytes > 2 << 20, "the weights of a kernel do not fit the cache"
    measured = {kernel.name for kernel in result.kernels} | set(result.missing)
    assert {"torch linear f32", "torch linear bf16", "torch int8pack", "torch int4pack"} <= measured


@pytest.mark.usefixtures("small")
def test_weights_are_ordinary_numbers_in_every_format() -> None:
    """So that no product is slow for want of a normal number, or meets one that is not finite."""
    from outrider import native
    from outrider.models.packing import BITS_PER_WEIGHT

    buffer = np.random.default_rng(0).integers(0x20, 0x30, 1 << 20, dtype=np.uint8)
    for name, bits in BITS_PER_WEIGHT.items():
        matrix = native.library.PackedMatrix.from_data(name, 256, 256, buffer[: round(bits * 256 * 256 / 8)])
        weights = native.library.embedding(matrix, np.arange(256))
        assert np.isfinite(weights).all(), name
        nonzero = np.abs(weights[weights != 0])
        assert nonzero.size > weights.size // 2, name
        assert nonzero.min() > 1e-30, name
        assert nonzero.max() < 1e6, name


@pytest.mark.usefixtures("small")
def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "k.json"
    words = ["kernels", "--size", "256", "--repeats", "1", "--formats", "q4_k,bf16", "--threads", "1"]
    result = CliRunner().invoke(app, [*words, "--json", str(out)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for word in ("q4_k", "bf16", "torch linear f32", "% of read", "n=8", "GB/s"):
        assert word in result.stdout, result.stdout
    report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert [kernel["name"] for kernel in report["kernels"]][:2] == ["q4_k", "bf16"]
    assert [row["rows"] for row in report["kernels"][0]["rows"]] == list(range(1, 17))
    assert report["read_gb_s"] > 0
    assert report["arguments"]["formats"] == "q4_k,bf16"

    alone = CliRunner().invoke(app, [*words, "--json", "-"])
    assert json.loads(alone.stdout)["size"] == 256, "nothing else on stdout"


@pytest.mark.parametrize(
    ("options", "words"), [(["--size", "300"], "--size 300"), (["--formats", "q4_k,q9"], "'q9' is not known")]
)
def test_what_cannot_be_measured_is_refused(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["kernels", *options])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
