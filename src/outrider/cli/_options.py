"""Options that several commands share, and what they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling_params import SamplingParams

DEFAULT_MODEL = "smollm2-135m-instruct"

Model = Annotated[str, typer.Argument(help="Alias, .gguf file, Hugging Face folder or hub id.", metavar="MODEL")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Generate at most this many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the most probable token each time.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the most probable tokens up to this mass.")]
TopK = Annotated[int, typer.Option("--top-k", help="Keep this many most probable tokens; 0 keeps all.")]
MinP = Annotated[float, typer.Option("--min-p", help="Keep tokens this share as probable as the most probable.")]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1, tokens in prompt or output become less likely.")
]
Logprobs = Annotated[
    int | None, typer.Option("--logprobs", help="With --json: log-probabilities, and those of the N most probable.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Fixes the answer, with or without speculation.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="A string that ends the text; may be repeated.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")]
Speculative = Annotated[
    str,
    typer.Option(
        "--speculative-config",
        help="'auto', 'off', 'ngram', or JSON such as '{\"method\": \"ngram\", \"num_speculative_tokens\": 8}'.",
        metavar="JSON|auto|off",
    ),
]
DraftModel = Annotated[str | None, typer.Option("--draft-model", help="Draft with this model (same vocabulary).")]
NumSpeculative = Annotated[
    int | None, typer.Option("--num-speculative-tokens", "-k", help="Draft at most K tokens per step; 0 drafts none.")
]
DtypeOption = Annotated[
    str, typer.Option("--dtype", help="auto keeps a .gguf file's own formats; or float32, bfloat16, float16.")
]
Quantization = Annotated[
    str | None, typer.Option("--quantization", help="int8 or int4: round the weights when loading (CPU).")
]
BackendOption = Annotated[str, typer.Option("--backend", help="auto, native (CPU kernels) or reference (torch).")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
MaxModelLen = Annotated[int | None, typer.Option("--max-model-len", help="Longest prompt and output together.")]


def speculative_dict(config: str, draft_model: str | None, num_speculative_tokens: int | None) -> dict[str, Any]:
    """One set of ``SpeculativeConfig`` keys from the three options. Raises ``ConfigError`` where they disagree."""
    from outrider.config import SpeculativeConfig
    from outrider.errors import ConfigError

    chosen = SpeculativeConfig.parse(config).model_dump(exclude_unset=True)
    for key, option, value in (
        ("model", "--draft-model", draft_model),
        ("num_speculative_tokens", "--num-speculative-tokens", num_speculative_tokens),
    ):
        if value is None:
            continue
        if chosen.get(key, value) != value:
            raise ConfigError(f"{option} {value!r} contradicts {key}={chosen[key]!r} in --speculative-config; give one")
        chosen[key] = value
    return chosen


def load(model: str, speculative: dict[str, Any], **settings: Any) -> LLM:
    """Load an ``LLM``; a model that must be fetched first shows its progress on stderr."""
    from rich.console import Console

    from outrider.cli.pull import show_progress
    from outrider.config import EngineConfig, SpeculativeConfig
    from outrider.llm import LLM
    from outrider.models.loader.resolve import resolve

    # A setting that does not fit is refused before anything is fetched.
    EngineConfig(model=model, speculative=SpeculativeConfig.parse(speculative), **settings)
    with show_progress() as progress:
        for reference in filter(None, (model, speculative.get("model"))):
            resolve(reference, progress)
    with Console(stderr=True).status(f"loading {model} …"):
        return LLM(model, speculative_config=speculative, **settings)


def sampling_params(**values: Any) -> SamplingParams:
    """``SamplingParams`` of the values that were given; None is left to the default."""
    from outrider.sampling_params import SamplingParams

    return SamplingParams(**{key: value for key, value in values.items() if value is not None})
