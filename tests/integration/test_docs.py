"""The Python in README and docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/quickstart.md", "docs/structured_outputs.md", "docs/drafters.md"]


@pytest.mark.model
@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} has no example"
    for block in blocks:
        exec(compile(block, page, "exec"), {})
    assert "Paris" in capsys.readouterr().out
