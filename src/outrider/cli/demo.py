"""``outrider demo``: the same three texts with speculation off and on, and the proof that nothing changed."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import _options as options

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.llm import LLM
    from outrider.outputs import RequestOutput

FUNCTION = """def moving_average(values, window):
    result = []
    for i in range(len(values) - window + 1):
        total = 0
        for j in range(i, i + window):
            total = total + values[j]
        result.append(total / window)
    return result
"""
LETTER = """Dear Ms. Alvarez,

Thank you for your order of 14 March. The twelve oak chairs left our workshop this morning and should reach your \
restaurant by Thursday. Please check each chair on arrival, and tell us within ten days if anything is damaged. The \
invoice is attached to this letter.

Kind regards,
Henrik Lund"""

PROMPTS: dict[str, str] = {
    "copy": f"Copy this letter word for word, and add nothing:\n\n{LETTER}",
    "code": f"Here is a Python function:\n\n```python\n{FUNCTION}```\n\n"
    "Write the same function again with a docstring added after its first line.",
    "prose": "Write a short story about a lighthouse keeper who finds a message in a bottle.",
}


@dataclass(frozen=True)
class Comparison:
    """One prompt, run without and with speculation. Rates are tokens per second after the first token."""

    name: str
    identical: bool
    tokens: int
    plain_tok_s: float
    spec_tok_s: float
    speedup: float
    mean_acceptance_length: float
    draft_acceptance_rate: float
    text: str


def demo(
    model: Annotated[str, typer.Option("--model", help="Alias, .gguf file, folder or hub id.")] = options.DEFAULT_MODEL,
    max_tokens: options.MaxTokens = 96,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Interleaved runs of each; medians are shown.")] = 3,
    speculative_config: options.Speculative = "auto",
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculative = None,
    dtype: options.DtypeOption = "auto",
    json_path: Annotated[str | None, typer.Option("--json", help="Write the figures here; - is stdout.")] = None,
) -> None:
    """Generate three texts with speculation off and on; show how each token was made, the speed, and that both agree.

    Exits with 1 if a text is not identical, token for token.
    """
    from rich.console import Console

    from outrider.errors import ConfigError

    speculative = options.speculative_dict(speculative_config, draft_model, num_speculative_tokens)
    # Each run must do all of the work: neither the prompt nor the text of the run before is remembered.
    speculative = {**speculative, "suffix_cache_tokens": 0}
    llm = options.load(model, speculative, dtype=dtype, prefix_caching=False)
    if not llm.engine.speculator.active:
        raise ConfigError(f"the demo compares speculation off and on, but it is {llm.speculation}")
    console = Console(stderr=json_path == "-", highlight=False, soft_wrap=False)
    console.print(f"[bold]{model}[/bold], greedy, drafter: {llm.speculation}\n")
    _run(llm, "Hello", 8, 0)  # the first pass touches every weight and is slower
    results = []
    for name, prompt in PROMPTS.items():
        with Console(stderr=True).status(f"{name}: {repeats} runs each, with speculation off and on …"):
            comparison, output = compare(llm, name, prompt, max_tokens, repeats)
        _show(console, comparison, output)
        results.append(comparison)
    _summary(console, results)
    identical = all(result.identical for result in results)
    if json_path is not None:
        from outrider.cli._report import environment, write_json

        arguments: dict[str, object] = {
            "model": model,
            "max_tokens": max_tokens,
            "repeats": repeats,
            "speculation": llm.speculation.to_dict(),
        }
        write_json(
            {"prompts": [asdict(r) for r in results], "identical": identical, **environment(arguments)}, json_path
        )
    if not identical:
        raise typer.Exit(1)


def compare(llm: LLM, name: str, prompt: str, max_tokens: int, repeats: int) -> tuple[Comparison, RequestOutput]:
    """Run ``prompt`` plain and speculative in turn, ``repeats`` times; medians, and the last speculative output."""
    plain_rates, spec_rates, ratios = [], [], []
    for _ in range(repeats):
        plain = _run(llm, prompt, max_tokens, 0)
        spec = _run(llm, prompt, max_tokens, None)
        plain_rates.append(rate(plain))
        spec_rates.append(rate(spec))
        ratios.append(spec_rates[-1] / plain_rates[-1])
    stats = spec.metrics.speculative_decoding
    return (
        Comparison(
            name=name,
            identical=plain.outputs[0].token_ids == spec.outputs[0].token_ids,
            tokens=len(spec.outputs[0].token_ids),
            plain_tok_s=statistics.median(plain_rates),
            spec_tok_s=statistics.median(spec_rates),
            speedup=statistics.median(ratios),
            mean_acceptance_length=stats.mean_acceptance_length,
            draft_acceptance_rate=stats.draft_acceptance_rate,
            text=spec.outputs[0].text,
        ),
        spec,
    )


def rate(output: RequestOutput) -> float:
    """Tokens per second after the first token; 0.0 if there is only one."""
    metrics = output.metrics
    if metrics.first_token_time is None or metrics.finish_time is None:
        return 0.0
    seconds = metrics.finish_time - metrics.first_token_time
    first_step = 1 + next(iter(metrics.speculative_decoding.per_step_accepted), 0)
    tokens = len(output.outputs[0].token_ids) - first_step
    return tokens / seconds if seconds > 0 else 0.0


def _run(llm: LLM, prompt: str, max_tokens: int, num_speculative_tokens: int | None) -> RequestOutput:
    from outrider.errors import RequestFailedError

    params = options.sampling_params(
        temperature=0.0, max_tokens=max_tokens, num_speculative_tokens=num_speculative_tokens
    )
    (output,) = llm.chat([{"role": "user", "content": prompt}], params)
    if output.error is not None:
        raise RequestFailedError(output.error)
    return output


def _show(console: Console, comparison: Comparison, output: RequestOutput) -> None:
    from rich.panel import Panel

    from outrider.cli._render import marked

    completion = output.outputs[0]
    console.print(
        Panel(
            marked(completion.token_texts, completion.sources),
            title=f"[bold]{comparison.name}[/bold]",
            title_align="left",
            subtitle=f"{comparison.tokens} tokens, {comparison.mean_acceptance_length:.2f} per drafted pass",
            subtitle_align="right",
        )
    )


def _summary(console: Console, results: list[Comparison]) -> None:
    from rich.table import Table

    from outrider.cli._render import legend

    table = Table(title="greedy, speculation off and on", title_justify="left")
    for heading in ("prompt", "tokens", "off tok/s", "on tok/s", "speedup", "tokens per draft", "same tokens"):
        table.add_column(heading, justify="left" if heading == "prompt" else "right")
    for r in results:
        cells: list[Any] = [r.name, str(r.tokens), f"{r.plain_tok_s:.1f}", f"{r.spec_tok_s:.1f}", f"{r.speedup:.2f}x"]
        cells += [f"{r.mean_acceptance_length:.2f}", "yes" if r.identical else "[bold red]NO[/bold red]"]
        table.add_row(*cells)
    console.print("\nHow each token was made:")
    console.print(legend())
    console.print(table)
