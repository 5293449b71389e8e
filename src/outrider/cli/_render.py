"""How tokens look in a terminal: marked by how they were made, in colour *and* by underline or weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from outrider.outputs import TokenSource

STYLES: dict[str, str] = {
    "target": "",
    "accepted": "green underline",
    "recovered": "red bold",
    "bonus": "cyan italic",
}
MEANINGS: dict[str, str] = {
    "accepted": "drafted, and accepted by the target (underlined)",
    "recovered": "the target's own, in place of a rejected draft (bold)",
    "bonus": "the target's own, after drafts that were all accepted (italic)",
    "target": "the target's own, nothing was drafted (plain)",
}


def marked(texts: Sequence[str], sources: Sequence[TokenSource]) -> Text:
    """The text of tokens, each in the style of its source."""
    from rich.text import Text

    out = Text()
    for text, source in zip(texts, sources, strict=True):
        out.append(text, style=STYLES[source])
    return out


def legend() -> Text:
    """What the styles mean, a line each."""
    from rich.text import Text

    out = Text()
    for source, meaning in MEANINGS.items():
        out.append("  ")
        out.append(source, style=STYLES[source])
        out.append(" " * (10 - len(source)) + meaning + "\n", style="dim")
    return out
