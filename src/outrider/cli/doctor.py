"""``outrider doctor``: what this machine has, what Outrider will use, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def doctor(
    json_path: Annotated[str | None, typer.Option("--json", help="Write the findings here; - is stdout.")] = None,
) -> None:
    """Say what this machine has, which backend is used and why, and where models are kept.

    Exits with 1 if something that Outrider needs does not work.
    """
    from rich.console import Console

    from outrider.cli._report import environment, write_json

    report: dict[str, Any] = environment({})
    report["backend"] = _backend()
    report["limits"] = _limits()
    report["cache"] = _cache()
    report["models"] = _models()
    report["problems"] = _problems(report)
    _show(Console(stderr=json_path == "-", highlight=False), report)
    if json_path is not None:
        write_json(report, json_path)
    if report["problems"]:
        raise typer.Exit(1)


def _backend() -> dict[str, object]:
    from outrider import native
    from outrider.extras import has_torch

    torch: dict[str, Any] = {"device_name": None, "threads": None, "cpu_capability": None}
    why = "torch is not installed, and only it uses CUDA"
    if has_torch():
        from outrider.torch_backend.device import describe

        torch = describe()
        why = "torch sees no CUDA device" if torch["device_name"] is None else "a CUDA device was found"
    cuda = torch["device_name"] is not None
    without_native = "torch reference" if has_torch() else "none"
    return {
        "device": "cuda" if cuda else "cpu",
        "operations": "native" if native.available() and not cuda else without_native,
        "native": native.describe(),
        "why": why,
        **torch,
    }


def _limits() -> dict[str, object]:
    from outrider.machine import available_memory, group_limits, usable_processors

    limits = group_limits()
    return {
        "processors": usable_processors(),
        "available_bytes": available_memory(),
        "group_processors": limits.processors,
        "group_memory_bytes": limits.memory,
    }


def _cache() -> dict[str, object]:
    import shutil

    from outrider.models.loader.cache import cache_directory

    folder = cache_directory()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return {"folder": str(folder), "free_bytes": shutil.disk_usage(existing).free}


def _models() -> dict[str, str | None]:
    from outrider.models.loader.packaged import PACKAGED_MODELS, packaged_path

    paths = {alias: packaged_path(model) for alias, model in PACKAGED_MODELS.items()}
    return {alias: str(path) if path.exists() else None for alias, path in paths.items()}


def _problems(report: dict[str, Any]) -> list[str]:
    from outrider.extras import TORCH

    problems = [
        f"{name} is not installed; pip install {name}"
        for name, version in report["versions"].items()
        if version == "not installed" and name not in TORCH
    ]
    if report["backend"]["operations"] == "none":
        problems.append(report["backend"]["native"])
    if report["cache"]["free_bytes"] < 1 << 30:
        problems.append(
            f"less than 1 GiB is free under {report['cache']['folder']}; set OUTRIDER_CACHE to another folder"
        )
    return problems


def _limits_line(limits: dict[str, Any]) -> str:
    line = f"{limits['processors']} processors to use, {limits['available_bytes'] / 2**30:.1f} GiB available"
    quota, memory = limits["group_processors"], limits["group_memory_bytes"]
    groups = [] if quota is None else [f"{quota:g} processors"]
    groups += [] if memory is None else [f"{memory / 2**30:.1f} GiB"]
    return f"{line}; control groups allow {' and '.join(groups)}" if groups else f"{line}; no control group limits them"


def _show(console: Console, report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    machine, backend, cache = report["machine"], report["backend"], report["cache"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row(
        "machine", f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB"
    )
    table.add_row("limits", _limits_line(report["limits"]))
    table.add_row("system", machine["system"])
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    table.add_row("device", f"{backend['device']} ({backend['why']})")
    table.add_row("operations", backend["operations"])
    table.add_row("native", backend["native"])
    torch = f"{backend['threads']} threads, {backend['cpu_capability']}"
    absent = escape("not installed; pip install 'outrider[torch]' for CUDA and the reference")
    table.add_row("torch", torch if backend["threads"] else absent)
    table.add_row("cache", f"{cache['folder']}, {cache['free_bytes'] / 2**30:.0f} GiB free")
    for alias, path in report["models"].items():
        table.add_row("model", f"{alias}: {path or f'not here; outrider pull {alias}'}")
    console.print(table)
    for problem in report["problems"]:
        console.print(f"[bold red]problem[/bold red] {escape(problem)}")
    if not report["problems"]:
        console.print("[green]nothing is missing[/green]")
