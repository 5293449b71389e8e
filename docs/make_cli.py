"""Write docs/cli.md from the commands' own ``--help``; with ``--check`` say whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from outrider.cli.main import app

TARGET = Path(__file__).parent / "cli.md"
HEAD = """# Command line

<!-- written by docs/make_cli.py (make docs); edit the commands, not this page -->

Results go to stdout; progress, summaries and logs to stderr. Exit codes: 0 done, 1 the thing checked does not hold,
2 bad usage, with one line that says what was given, what is allowed and what to do.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    root = typer.main.get_command(app)
    _describe(root, "outrider", parts)
    return "\n".join(parts).rstrip() + "\n"


def _describe(command: Any, path: str, parts: list[str]) -> None:
    commands = getattr(command, "commands", None)
    if commands is not None:
        for name, child in sorted(commands.items()):
            _describe(child, f"{path} {name}", parts)
        return
    help_text = (command.help or "").strip()
    parts.append(f"\n## `{path}`\n\n{_unwrapped(help_text)}\n")
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        parts.append("| argument or option | default | meaning |\n|---|---|---|")
        parts.extend(rows)


def _unwrapped(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.metavar or parameter.name or '').upper()}`"
    default = parameter.default
    shown = "" if default is None or callable(default) or repr(default).startswith("Sentinel") else f"`{default}`"
    if parameter.required:
        shown = "required"
    meaning = (getattr(parameter, "help", "") or "").replace("|", "\\|")
    return f"| {names} | {shown} | {meaning} |"


def main() -> int:
    """Write or check; returns the exit code."""
    text = page()
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print("docs/cli.md is not up to date; run: make docs", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
