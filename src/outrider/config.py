"""Settings of the engine and of speculation: validated once, frozen, unknown keys refused by name."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from outrider._validation import Strict
from outrider.errors import ConfigError

KnownMethod = Literal["ngram", "suffix", "prediction", "draft_model", "cross_vocab", "composite", "off"]
Verification = Literal["auto", "standard", "block", "traversal", "coupled"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Backend = Literal["auto", "native", "reference"]
Quantization = Literal["int8", "int4"]
CrossVocabAlgorithm = Literal["auto", "tli", "slem"]

_CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)?")
_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}

MAX_SPECULATIVE_TOKENS = 64
DEFAULT_NUM_SPECULATIVE_TOKENS = 15
DEFAULT_DRAFT_MODEL_TOKENS = 8
DEFAULT_SUFFIX_MIN_PROBABILITY = 0.2
FIXED_SUFFIX_MIN_PROBABILITY = 0.03
"""Where K is fixed and rows have no price, only what is next to hopeless is left out."""


def parse_bytes(text: str) -> int | None:
    """``2GiB``, ``512MiB``, ``1.5GB`` or plain bytes as a number; None for any other text."""
    found = _BYTES.fullmatch(text.strip())
    unit = (found[2] or "b").lower() if found else ""
    return int(float(found[1]) * _UNITS[unit]) if found and unit in _UNITS else None


def missing_verb(drafter: Any) -> str | None:
    """The first method of a drafter that ``drafter`` lacks; None if it has all."""
    verbs = ("propose", "observe", "forget")
    return next((verb for verb in verbs if not callable(getattr(drafter, verb, None))), None)


class SpeculativeConfig(Strict):
    """Which drafter proposes tokens, and how many per step.

    method                  ``ngram``, ``suffix``, ``prediction`` (only from the text that a request brings),
                            ``draft_model``, ``cross_vocab`` (a draft model with another tokenizer), ``composite``
                            (suffix, and the draft model where it promises more), ``off``, or a drafter of your own: an
                            object, or ``package.module:Class``. ``auto`` takes ``composite`` if ``model`` is given,
                            else ``suffix`` (``ngram`` where there are no native kernels). A request's ``prediction``
                            is drafted from with every method but ``off``
    options                 keyword arguments for ``package.module:Class``
    model                   the draft model: alias, file, folder or hub id
    num_speculative_tokens  K, the most tokens drafted per step; 0 drafts nothing
    adaptive                as many tokens up to K as pay by measured costs, in each step and for each request, and none
                            where none do; ``False`` drafts K tokens wherever there are drafts
    draft_model_tokens      with ``composite`` (and so ``auto``), the most tokens that the draft model drafts per step
    quantization            ``int8`` or ``int4``: the draft model's weights in groups of 32, rounded when loaded (CPU)
    tree_width              above 1 the draft model proposes trees, K nodes in all: most children of a node, and most
                            nodes expanded per level
    cross_vocab_algorithm   how drafts of another vocabulary become the target's: ``tli`` (tokens that both have, with
                            their distribution), ``slem`` (the text, in the target's tokens), ``auto`` (slem for greedy
                            requests; for others tli, if at least half of the draft's most frequent tokens are the
                            target's too)
    draft_vocab_size        the draft model's output is trimmed to its so many lowest (most frequent) ids; lossless
    prompt_lookup_min/max   shortest and longest match, in tokens, of the ngram drafter
    suffix_min_probability  the suffix drafter leaves out tokens whose estimated chance of acceptance is below; default
                            0.2, and 0.03 without ``adaptive``
    suffix_cache_tokens     tokens of earlier outputs that the suffix drafter keeps for later requests; 36 bytes each
    verification            how drafts are judged. ``auto``: drafts of seeded requests are coupled with the target's own
                            noise, other sampled drafts judged by block, and trees by traversal, which is the same for
                            trees; ``coupled`` couples them for all requests; ``block``, ``traversal`` (one rule, for
                            chains and trees alike) and ``standard`` (token by token) couple none, so that a seeded
                            answer depends on the drafter
    """

    what: ClassVar[str] = "speculative_config key"

    method: Any = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    model: str | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=MAX_SPECULATIVE_TOKENS)] = DEFAULT_NUM_SPECULATIVE_TOKENS
    draft_model_tokens: Annotated[int, Field(ge=1, le=MAX_SPECULATIVE_TOKENS)] = DEFAULT_DRAFT_MODEL_TOKENS
    adaptive: bool = True
    quantization: Quantization | None = None
    cross_vocab_algorithm: CrossVocabAlgorithm = "auto"
    draft_vocab_size: Annotated[int, Field(ge=1)] | None = None
    tree_width: Annotated[int, Field(ge=1, le=8)] = 1
    prompt_lookup_min: Annotated[int, Field(ge=1, le=32)] = 1
    prompt_lookup_max: Annotated[int, Field(ge=1, le=32)] = 4
    suffix_min_probability: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    suffix_cache_tokens: Annotated[int, Field(ge=0, le=1 << 30)] = 1 << 20
    verification: Verification = "auto"

    @field_validator("method")
    @classmethod
    def _known(cls, method: Any) -> Any:
        known = ("auto", *get_args(KnownMethod))
        if isinstance(method, str):
            if method not in known and not _CLASS_NAME.fullmatch(method):
                raise ValueError(f"must be one of {', '.join(known)}, or package.module:Class")
        elif missing_verb(method) is not None:
            raise ValueError("a drafter must have the methods propose, observe and forget")
        return method

    @model_validator(mode="after")
    def _consistent(self) -> SpeculativeConfig:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min={self.prompt_lookup_min} is above prompt_lookup_max={self.prompt_lookup_max}"
            )
        if self.method in ("draft_model", "cross_vocab") and self.model is None:
            raise ValueError(f"method={self.method!r} needs 'model', the draft model's alias, file, folder or hub id")
        for key in ("quantization", "draft_vocab_size"):
            if self.model is None and getattr(self, key) is not None:
                raise ValueError(f"{key} is the draft model's, but no 'model' is given")
        if self.tree_width > 1 and self.resolved_method not in ("draft_model", "off"):
            raise ValueError(f"tree_width={self.tree_width} needs method='draft_model', not method={self.method!r}")
        if self.method not in ("auto", "draft_model", "cross_vocab", "composite") and self.model is not None:
            raise ValueError(f"method={self.method!r} takes no draft model, but model={self.model!r} was given")
        if self.options and not self.plugin:
            raise ValueError(f"options are for method='package.module:Class', not for method={self.method!r}")
        return self

    @property
    def plugin(self) -> bool:
        """True if ``method`` names a class to import."""
        return isinstance(self.method, str) and ":" in self.method

    @property
    def resolved_method(self) -> Any:
        """The method after ``auto`` is decided: a ``KnownMethod``, ``package.module:Class``, or a drafter."""
        if self.num_speculative_tokens == 0:
            return "off"
        if self.method == "auto":
            if self.model is None:
                return "suffix"
            return "composite" if self.tree_width == 1 else "draft_model"
        return self.method

    @property
    def resolved_suffix_min_probability(self) -> float:
        """``suffix_min_probability``, or the default for the way in which K is chosen."""
        if self.suffix_min_probability is not None:
            return self.suffix_min_probability
        return DEFAULT_SUFFIX_MIN_PROBABILITY if self.adaptive else FIXED_SUFFIX_MIN_PROBABILITY

    @property
    def drafts_with_model(self) -> bool:
        """True if a draft model is at work."""
        return self.model is not None and self.resolved_method in ("draft_model", "cross_vocab", "composite")

    @staticmethod
    def keys_of(text: str) -> dict[str, Any]:
        """The keys that a method's name or a JSON object gives, not yet checked. Raises ``ConfigError``."""
        if not text.lstrip().startswith("{"):
            return {"method": text}
        try:
            keys: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"speculative_config is not valid JSON ({error}): {text!r}") from None
        return keys

    @classmethod
    def parse(cls, value: SpeculativeConfig | dict[str, Any] | str | None) -> SpeculativeConfig:
        """Accept ``None`` (off), a method's name, a JSON object as text, a dict, or a ready object."""
        if value is None:
            return cls(method="off")
        if isinstance(value, SpeculativeConfig):
            return value
        if isinstance(value, dict):
            return cls(**value)
        if isinstance(value, str):
            return cls(**cls.keys_of(value))
        raise ConfigError(f"speculative_config must be None, a name, a dict or JSON text, not {type(value).__name__}")


class EngineConfig(Strict):
    """Settings of one engine.

    model                   alias, ``.gguf`` file, folder or hub id of the target model
    dtype                   type of weights and KV cache. ``auto``: on CPU a GGUF file keeps its own formats, other
                            weights are bfloat16, and the KV cache is float16; on CUDA bfloat16
    quantization            ``int8`` or ``int4``: weights in groups of 32, rounded when loaded (CPU)
    backend                 ``native`` kernels or the torch ``reference``; ``auto`` takes native on a CPU
    device                  ``auto`` takes CUDA where there is one, else ``cpu``
    max_model_len           most tokens of one request, prompt and output together; default: the model's own
    max_num_seqs            most requests in one step
    max_num_batched_tokens  most tokens in one forward pass; longer prompts are cut into chunks
    block_size              tokens per KV block
    kv_cache_memory         memory for the KV caches of target and draft model together: bytes, or text such as
                            ``"2GiB"``; default: what ``max_num_seqs`` full requests need, within a quarter of the free
                            memory
    prefix_caching          requests that begin with the same tokens share their K/V
    seed                    where the seeds of unseeded requests come from; default: the operating system
    """

    what: ClassVar[str] = "engine setting"

    model: str
    dtype: Dtype = "auto"
    quantization: Quantization | None = None
    backend: Backend = "auto"
    device: str = "auto"
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 64
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 512
    block_size: Annotated[int, Field(ge=1, le=1024)] = 16
    kv_cache_memory: Annotated[int, Field(ge=1)] | None = None
    prefix_caching: bool = True
    seed: int | None = None
    speculative: SpeculativeConfig = SpeculativeConfig()

    @field_validator("kv_cache_memory", mode="before")
    @classmethod
    def _in_bytes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if (count := parse_bytes(value)) is None:
            raise ValueError("must be a number of bytes, or text such as '2GiB', '512MiB' or '1.5GB'")
        return count
