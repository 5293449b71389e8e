"""``outrider audit``: checks that speculation changes nothing, made to be run by anyone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.audit.exact import ExactReport

app = typer.Typer(help="Check that speculative decoding changes nothing.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _audit() -> None:
    """Check that speculative decoding changes nothing."""


@app.command("exact")
def exact(
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="PATH", help="Also write the result as JSON; - for stdout alone.")
    ] = None,
) -> None:
    """Prove on small vocabularies, by enumeration, that the verifiers emit the target model's own distribution.

    Needs no model and takes seconds. Exit code 0: proven, 1: not.
    """
    from rich.console import Console

    from outrider.audit.exact import audit_exact
    from outrider.cli._report import environment, write_json

    progress = Console(stderr=True)
    if progress.is_terminal:
        with progress.status("starting") as status:
            report = audit_exact(progress=lambda text: status.update(text))
    else:
        report = audit_exact(progress=lambda text: progress.print(text, highlight=False))
    if json_path != "-":
        _show(report, Console())
    if json_path is not None:
        write_json({**report.to_dict(), **environment({"json": json_path})}, json_path)
    if not report.passed:
        raise typer.Exit(1)


def _show(report: ExactReport, console: Console) -> None:
    from rich.table import Table

    from outrider.audit.exact import CAUGHT_TV, MAX_TV

    console.print(
        "[bold]1. Does the output have the target model's own distribution?[/bold]\n"
        "Every outcome of drafting and verifying was followed. TV, total variation, is the largest difference in\n"
        f"probability of any set of outputs: 0 is equal, 1 is disjoint; up to {MAX_TV:g} is rounding."
    )
    distributions = Table("verifier", "drafts", "cases", "largest TV", "")
    for verifier, drafting, count, tv in report.by_way():
        distributions.add_row(verifier, drafting, str(count), f"{tv:.1e}", _verdict(tv < MAX_TV, "exact", "NOT EXACT"))
    console.print(distributions)

    console.print(
        "\n[bold]2. Would a mistake be noticed?[/bold]\n"
        f"Mistakes were planted one at a time; each must show as a TV above {CAUGHT_TV:g}."
    )
    faults = Table("planted mistake", "what it does", "TV", "")
    for result in report.mutations:
        faults.add_row(
            result.mutation.name,
            result.mutation.description,
            f"{result.tv:.3f}",
            _verdict(result.caught, "caught", "MISSED"),
        )
    console.print(faults)

    console.print("\n[bold]3. Does the standard verifier keep its five properties?[/bold]")
    properties = Table("property", "what was seen", "")
    for item in report.properties:
        properties.add_row(item.name, item.detail, _verdict(item.passed, "holds", "FAILS"))
    console.print(properties)

    caught = sum(result.caught for result in report.mutations)
    held = sum(item.passed for item in report.properties)
    console.print(
        f"\n{_verdict(report.passed, 'PASSED', 'FAILED')}: {len(report.cases)} cases, largest TV {report.max_tv:.1e}; "
        f"{caught} of {len(report.mutations)} mistakes caught; {held} of {len(report.properties)} properties hold.",
        highlight=False,
    )


def _verdict(good: bool, yes: str, no: str) -> str:
    return f"[green]{yes}[/green]" if good else f"[bold red]{no}[/bold red]"
