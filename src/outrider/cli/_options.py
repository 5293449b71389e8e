"""Options that several commands share, and what they come to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.config import EngineConfig
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
JsonSchema = Annotated[
    str | None, typer.Option("--json-schema", help="The output is an instance of this schema: a file, or JSON.")
]
JsonObject = Annotated[bool, typer.Option("--json-object", help="The output is a JSON object.")]
Regex = Annotated[str | None, typer.Option("--regex", help="The output matches this regular expression.")]
GrammarFile = Annotated[str | None, typer.Option("--grammar-file", help="The output is of this Lark grammar.")]
Choice = Annotated[list[str] | None, typer.Option("--choice", help="The output is this string; may be repeated.")]
PredictionFile = Annotated[
    str | None, typer.Option("--prediction-file", help="What the output will probably be; makes it faster where right.")
]
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
DraftModel = Annotated[
    str | None,
    typer.Option("--draft-model", help="Draft with this model (its tokenizer may be another one)."),
]
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
KVCacheMemory = Annotated[
    str | None,
    typer.Option("--kv-cache-memory", help="Memory for all KV caches, such as 2GiB or 500MB; default: as needed."),
]
MaxModelLen = Annotated[int | None, typer.Option("--max-model-len", help="Longest prompt and output together.")]


def speculative_dict(config: str, draft_model: str | None, num_speculative_tokens: int | None) -> dict[str, Any]:
    """One set of ``SpeculativeConfig`` keys from the three options. Raises ``ConfigError`` where they disagree."""
    from outrider.config import SpeculativeConfig
    from outrider.errors import ConfigError

    chosen = SpeculativeConfig.keys_of(config)
    for key, option, value in (
        ("model", "--draft-model", draft_model),
        ("num_speculative_tokens", "--num-speculative-tokens", num_speculative_tokens),
    ):
        if value is None:
            continue
        if chosen.get(key, value) != value:
            raise ConfigError(f"{option} {value!r} contradicts {key}={chosen[key]!r} in --speculative-config; give one")
        chosen[key] = value
    # Only now, since one option may be what another needs.
    return SpeculativeConfig(**chosen).model_dump(exclude_unset=True)


def fetch(model: str, speculative: dict[str, Any], **settings: Any) -> EngineConfig:
    """The engine's settings, and their models on disk; what must be fetched first shows its progress on stderr.

    A setting that does not fit is refused before anything is fetched.
    """
    from outrider.cli.pull import show_progress
    from outrider.config import EngineConfig, SpeculativeConfig
    from outrider.models.loader.resolve import resolve

    config = EngineConfig(model=model, speculative=SpeculativeConfig.parse(speculative), **settings)
    with show_progress() as progress:
        for reference in filter(None, (model, config.speculative.model)):
            resolve(reference, progress)
    return config


def load(model: str, speculative: dict[str, Any], **settings: Any) -> LLM:
    """Load an ``LLM``; a model that must be fetched first shows its progress on stderr."""
    from outrider.llm import LLM

    fetch(model, speculative, **settings)
    if not sys.stderr.isatty():  # nothing would be shown, and rich takes long to import
        return LLM(model, speculative_config=speculative, **settings)
    from rich.console import Console

    with Console(stderr=True).status(f"loading {model} …"):
        return LLM(model, speculative_config=speculative, **settings)


def num_bytes(option: str, text: str) -> int:
    """What ``option`` gives, such as ``2GiB``, in bytes. Raises ``ConfigError``."""
    from outrider.config import parse_bytes
    from outrider.errors import ConfigError

    if (count := parse_bytes(text)) is None:
        raise ConfigError(f"{option} {text!r} must be a number of bytes, such as 2GiB, 512MiB or 1500000000")
    return count


def structured_outputs(
    json_schema: str | None, json_object: bool, regex: str | None, grammar_file: str | None, choice: list[str] | None
) -> dict[str, Any] | None:
    """``StructuredOutputs`` keys from the options; None if none is given."""
    keys: dict[str, Any] = {}
    if json_schema is not None:
        is_json = json_schema.lstrip().startswith("{")
        keys["json"] = json_schema if is_json else read_text("--json-schema", json_schema)
    if json_object:
        keys["json_object"] = True
    if regex is not None:
        keys["regex"] = regex
    if grammar_file is not None:
        keys["grammar"] = read_text("--grammar-file", grammar_file)
    if choice:
        keys["choice"] = choice
    return keys or None


def read_text(option: str, path: str) -> str:
    """The text of a file that ``option`` names, ``-`` being stdin. Raises ``InvalidRequestError``."""
    from outrider.errors import InvalidRequestError

    if path == "-":
        return sys.stdin.read()
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequestError(f"cannot read {option} {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{option} {path!r} is not UTF-8 text") from None


def sampling_params(**values: Any) -> SamplingParams:
    """``SamplingParams`` of the values that were given; None is left to the default."""
    from outrider.sampling_params import SamplingParams

    return SamplingParams(**{key: value for key, value in values.items() if value is not None})
