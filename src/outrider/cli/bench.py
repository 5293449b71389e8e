"""``outrider bench``: how fast the kernels are, and how fast Outrider is beside other engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import _options as options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from outrider.bench.comparison import Comparison, EngineFigures
    from outrider.bench.kernels import KernelReport
    from outrider.bench.paired import Ratio
    from outrider.bench.prompts import BenchPrompt
    from outrider.models.tokenizer import Tokenizer

app = typer.Typer(
    help="Measure kernels, and Outrider beside other engines.", no_args_is_help=True, rich_markup_mode=None
)

JsonPath = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Also write the result as JSON; - for stdout alone.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads of every engine; default: the processors at hand.")
]
SHOWN_ROWS = (1, 2, 3, 4, 5, 8, 16)


@app.callback()
def _bench() -> None:
    """Measure kernels, and Outrider beside other engines."""


@app.command("compare")
def compare(
    model: Annotated[str, typer.Option("--model", help="Alias, .gguf file, Hugging Face folder or hub id.")],
    draft_model: options.DraftModel = None,
    peers: Annotated[
        str, typer.Option("--peers", help="Of llama.cpp, transformers, openvino, vllm, separated by commas; or none.")
    ] = "llama.cpp",
    prompts: Annotated[
        str | None, typer.Option("--prompts", metavar="FILE", help="JSON lines with 'prompt' or 'token_ids'.")
    ] = None,
    humaneval: Annotated[
        int | None, typer.Option("--humaneval", metavar="N", help="The first N HumanEval tasks as prompts.")
    ] = None,
    max_tokens: options.MaxTokens = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Interleaved rounds over all prompts.")] = 3,
    speculative_config: options.Speculative = "auto",
    num_speculative_tokens: options.NumSpeculative = None,
    dtype: options.DtypeOption = "auto",
    quantization: options.Quantization = None,
    backend: options.BackendOption = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Run Outrider and other engines in turn on the same prompts: decode, prompt and forward times, memory.

    Peers run in an environment of their own, which make peers sets up; one that is not there is named. Exits with 1
    if Outrider's tokens differ between speculation off and on.
    """
    from rich.console import Console

    from outrider.bench import compare as bench
    from outrider.bench.engines import outrider_specs, parse_peers, peer_specs
    from outrider.cli._report import environment, write_json
    from outrider.errors import InvalidRequestError
    from outrider.models.loader.load import open_model
    from outrider.models.loader.resolve import resolve

    names = parse_peers(peers)
    _check_writable(json_path)
    if max_tokens < 2:
        raise InvalidRequestError(f"--max-tokens {max_tokens!r} leaves nothing to time after the first; give 2 or more")
    cores = threads or _processors()
    speculative = options.speculative_dict(speculative_config, draft_model, num_speculative_tokens)
    settings: dict[str, Any] = {"dtype": dtype, "quantization": quantization, "backend": backend}
    specs = outrider_specs(speculative, settings, cores)
    if (draft := speculative.get("model")) is not None:
        draft = str(resolve(draft).path)
    specs += peer_specs(names, draft, cores)
    opened = open_model(model)
    plan = bench.Plan(
        model=str(opened.source.path),
        longest=opened.config.max_position_embeddings,
        end_token_ids=tuple(opened.config.eos_token_ids),
        prompts=_prompts(opened.tokenizer, prompts, humaneval),
        max_tokens=max_tokens,
        repeats=repeats,
        threads=cores,
    )
    with _progress() as report:
        result = bench.compare(plan, specs, report)
    if json_path != "-":
        _show_comparison(Console(highlight=False, soft_wrap=True), result, plan)
    if json_path is not None:
        arguments = {
            "model": model,
            "speculative_config": speculative,
            "peers": names,
            "prompts": prompts,
            "humaneval": humaneval,
            "max_tokens": max_tokens,
            "repeats": repeats,
            "threads": cores,
            **settings,
        }
        write_json({**result.to_dict(), **environment(arguments)}, json_path)
    if not result.identical:
        raise typer.Exit(1)


@app.command("kernels")
def kernels(
    size: Annotated[int, typer.Option("--size", min=256, help="Weights are SIZE x SIZE, a multiple of 256.")] = 4096,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Interleaved rounds; medians are shown.")] = 7,
    formats: Annotated[
        str | None, typer.Option("--formats", help="Of the packed formats, separated by commas; default: all.")
    ] = None,
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Time a product of weights with 1 to 16 rows, for each weight format, beside torch's own kernels if torch is here.

    Every weight is read from memory, as in a model; the measured streaming-read bandwidth is the limit. Needs no model.
    """
    from rich.console import Console

    from outrider.bench.kernels import measure_kernels
    from outrider.cli._report import environment, write_json

    _check_writable(json_path)
    cores = threads or _processors()
    wanted = None if formats is None else [name.strip() for name in formats.split(",")]
    with _progress() as report:
        result = measure_kernels(size=size, repeats=repeats, formats=wanted, threads=cores, report=report)
    if json_path != "-":
        _show_kernels(Console(highlight=False, soft_wrap=True), result)
    if json_path is not None:
        arguments: dict[str, object] = {"size": size, "repeats": repeats, "formats": formats, "threads": cores}
        write_json({**result.to_dict(), **environment(arguments)}, json_path)


def _check_writable(path: str | None) -> None:
    """Raise ``ConfigError`` now rather than after an hour of measuring."""
    from pathlib import Path

    from outrider.errors import ConfigError

    if path not in (None, "-") and not Path(str(path)).absolute().parent.is_dir():
        raise ConfigError(f"cannot write --json {path!r}: its folder does not exist")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prompts(tokenizer: Tokenizer, path: str | None, humaneval: int | None) -> list[BenchPrompt]:
    from outrider.bench import prompts
    from outrider.errors import InvalidRequestError

    if path is not None and humaneval is not None:
        raise InvalidRequestError("give either --prompts or --humaneval, not both")
    if path is not None:
        return prompts.from_file(tokenizer, path)
    if humaneval is not None:
        return prompts.human_eval(tokenizer, humaneval)
    return prompts.built_in(tokenizer)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Where the measurement has got to, on stderr: one changing line on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    # No spinner: its thread would run beside what is measured.
    console = Console(stderr=True, highlight=False)
    try:
        yield lambda text: console.print(f"\r\x1b[2K{text}", end="", soft_wrap=True, markup=False)
    finally:
        console.print("\r\x1b[2K", end="")


def _show_comparison(console: Console, result: Comparison, plan: Any) -> None:
    from rich.table import Table

    console.print(
        f"[bold]Decoding[/bold], greedy: {len(result.prompts)} prompts of {_span(plan.prompts)} tokens, up to "
        f"{plan.max_tokens} tokens each, {plan.repeats} rounds with the engines in turn, {plan.threads} threads.\n"
        "tok/s: all tokens after the first of each text, over their time. x: times as fast, the median over pairs\n"
        "of runs of one prompt next to each other. per pass: tokens gained per pass with drafts. same: texts whose\n"
        "tokens are those of Outrider without speculation; other engines round differently, so theirs may part ways."
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for heading in [
        "tok/s",
        *(f"x {base.removeprefix('outrider ')}" for base in result.plain_baselines),
        "per pass",
        "same",
    ]:
        table.add_column(heading, justify="right")
    for label in result.labels:
        same, prompts, _ = result.agreement(label)
        table.add_row(
            label,
            _number(result.pooled_rate(label)),
            *(_ratio(result.ratio(label, base)) if base != label else "" for base in result.plain_baselines),
            _number(result.mean_acceptance_length(label), ".2f"),
            f"{same} of {prompts}",
        )
    console.print(table, soft_wrap=False)
    console.print(
        f"\n[bold]One pass[/bold]: a prompt of {result.prompt_tokens} tokens, then passes over a few rows after "
        f"{result.context_tokens} tokens.\n"
        "n=4: time of a pass over 4 rows, over that of one; speculation pays where it stays near 1."
    )
    _show_passes(console, result.engines, result.rows)
    for one in result.missing:
        state = "is missing" if one.absent else "failed"
        todo = f"; to add it: {one.todo}" if one.todo else ""
        console.print(f"[bold red]{one.name} {state}[/bold red]: ", end="")
        console.print(f"{one.reason}{todo}", markup=False)
    for engine in result.engines:
        if engine.idle_share > 0.05:
            console.print(
                f"[yellow]{engine.name} used {engine.idle_share:.0%} of a processor while others were measured; "
                "their figures are too low[/yellow]"
            )
    if not result.identical:
        console.print("[bold red]Outrider's tokens are NOT the same with speculation off and on[/bold red]")


def _show_passes(console: Console, engines: list[EngineFigures], rows: list[int]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for heading in ["prompt tok/s", "t(1) ms", *(f"n={n}" for n in rows[1:]), "MB at end", "MB at most"]:
        table.add_column(heading, justify="right")
    for engine in engines:
        name = engine.name if engine.measured_passes else engine.labels[0]
        table.add_row(
            name,
            _number(engine.prompt_rate),
            _number(engine.forward_ms(1)),
            *(_ratio(engine.forward_ratio(n)) for n in rows[1:]),
            f"{engine.resident_bytes / 1e6:.0f}",
            f"{engine.peak_bytes / 1e6:.0f}",
        )
    console.print(table, soft_wrap=False)
    for engine in engines:
        console.print(f"  {engine.name}: {engine.version}; {engine.detail}", style="dim", markup=False)


def _show_kernels(console: Console, result: KernelReport) -> None:
    shown = [rows for rows in SHOWN_ROWS if rows in result.rows]
    console.print(
        f"Weights {result.size} x {result.size}, kernels: {result.variant}, {result.threads} threads; "
        f"reading memory: [bold]{result.read_gb_s:.1f} GB/s[/bold].\n"
        "GB/s, ms: weight bytes over time, and time, at one row. % of read: those GB/s over what plain reading\n"
        "reached just before. n=4: time of a product with 4 rows, over that of one; all 16 row counts are in the JSON."
    )
    console.print(_kernel_table(result, shown), soft_wrap=False)
    for name, reason in result.missing.items():
        console.print(f"{name} was not measured: {reason}", markup=False)


def _kernel_table(result: KernelReport, shown: list[int]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("weights", no_wrap=True)
    for heading in ["bits", "GB/s", "% of read", "ms", *(f"n={n}" for n in shown[1:])]:
        table.add_column(heading, justify="right")
    for kernel in result.kernels:
        share = kernel.share_of_read(1)
        table.add_row(
            kernel.name,
            f"{kernel.bits_per_weight:.4g}",
            f"{kernel.gb_s(1):.1f}",
            "-" if share is None else f"{100 * share.median:.0f}",
            f"{kernel.ms(1):.3f}",
            *(f"{kernel.ratio(n).median:.2f}" for n in shown[1:]),
        )
    return table


def _span(prompts: list[BenchPrompt]) -> str:
    lengths = [len(prompt.token_ids) for prompt in prompts]
    return f"{min(lengths)} to {max(lengths)}"


def _number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f}"
