"""``outrider chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import _options as options

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling_params import SamplingParams


def chat(
    model: Annotated[str, typer.Argument(help="Alias, .gguf file, folder or hub id.")] = options.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option("--system", help="A system message to begin with.")] = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.7,
    top_p: options.TopP = 0.95,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    speculative_config: options.Speculative = "auto",
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculative = None,
    dtype: options.DtypeOption = "auto",
    quantization: options.Quantization = None,
    backend: options.BackendOption = "auto",
    device: options.Device = "auto",
    marks: Annotated[bool, typer.Option("--marks/--no-marks", help="Mark each token by how it was made.")] = True,
) -> None:
    """Talk to a model. An empty line or Ctrl-D ends; /reset forgets the conversation."""
    params = options.sampling_params(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    speculative = options.speculative_dict(speculative_config, draft_model, num_speculative_tokens)
    llm = options.load(model, speculative, dtype=dtype, quantization=quantization, backend=backend, device=device)
    typer.echo(f"{model}; speculation: {llm.speculation}. An empty line ends, /reset begins anew.", err=True)
    opening = [] if system is None else [{"role": "system", "content": system}]
    messages = list(opening)
    while (line := _ask()) is not None:
        if line == "/reset":
            messages = list(opening)
            continue
        asked = [*messages, {"role": "user", "content": line}]
        answer = _answer(llm, asked, params, marks=marks)
        if answer is not None:
            messages = [*asked, {"role": "assistant", "content": answer}]


def _ask() -> str | None:
    """The next line; None at the end. The prompt goes to stderr, so that stdout is the answers alone."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline().strip()
    return line or None


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams, *, marks: bool) -> str | None:
    """Print the answer as it comes and return it; None, with the reason on stderr, if it could not be given."""
    from rich.console import Console

    from outrider.cli._render import marked
    from outrider.errors import InvalidRequestError, RequestFailedError

    console = Console(highlight=False, soft_wrap=True)
    parts = []
    try:
        for piece in llm.stream(llm.chat_prompt(messages), params):
            if marks and console.is_terminal:
                console.print(marked(piece.token_texts, piece.sources), end="")
            else:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
            parts.append(piece.text)
    except (InvalidRequestError, RequestFailedError) as error:
        typer.echo(f"outrider: error: {error}; /reset begins anew", err=True)
        return None
    except KeyboardInterrupt:
        typer.echo(" (interrupted)", err=True)
    sys.stdout.write("\n")
    return "".join(parts)
