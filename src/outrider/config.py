"""Settings of the engine and of speculation. They are validated once and frozen; an unknown key is an error."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from outrider._validation import Strict
from outrider.errors import ConfigError

KnownMethod = Literal["ngram", "suffix", "prediction", "draft_model", "cross_vocab", "composite", "off"]
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
"""Default of ``suffix_min_probability`` for a fixed K, which ignores the cost of rows and so keeps unlikely tokens."""


def parse_bytes(text: str) -> int | None:
    """``2GiB``, ``512MiB``, ``1.5GB`` or plain bytes as a number; None for any other text."""
    found = _BYTES.fullmatch(text.strip())
    unit = (found[2] or "b").lower() if found else ""
    return int(float(found[1]) * _UNITS[unit]) if found and unit in _UNITS else None


def missing_verb(drafter: Any) -> str | None:
    """The first required method of a drafter that ``drafter`` does not have; None if it has all of them."""
    verbs = ("propose", "observe", "forget")
    return next((verb for verb in verbs if not callable(getattr(drafter, verb, None))), None)


class SpeculativeConfig(Strict):
    """Which drafter proposes tokens, how many per step, and how they are verified.

    method                  ``ngram``, ``suffix``, ``prediction`` (drafts from a request's ``prediction`` only),
                            ``draft_model``, ``cross_vocab`` (a draft model with another tokenizer), ``composite``
                            (``suffix``, or the draft model where it is expected to be faster), ``off``, or your own
                            drafter: an object, or ``package.module:Class``. ``auto`` is ``composite`` if ``model`` is
                            given, else ``suffix`` (``ngram`` without native kernels). With every method but ``off``,
                            drafts are also taken from a request's ``prediction``
    options                 keyword arguments for ``package.module:Class``
    model                   the draft model: alias, file, folder or hub id
    num_speculative_tokens  K, the largest number of tokens drafted per step; 0 turns speculation off
    adaptive                ``True``: the number of drafts, from 0 to K, is chosen per step and request by measured
                            costs. ``False``: K tokens are drafted whenever a drafter proposes that many
    draft_model_tokens      with ``composite``, the largest number of tokens that the draft model drafts per step
    quantization            ``int8`` or ``int4``: round the draft model's weights in groups of 32 at load time (CPU)
    tree_width              above 1, the draft model proposes trees of K nodes with at most ``tree_width`` children per
                            node, and expands at most ``tree_width`` nodes per level
    cross_vocab_algorithm   how drafts of another vocabulary become tokens of the target: ``tli`` (tokens in both
                            vocabularies, with their distribution), ``slem`` (the draft's text, in the target's tokens),
                            or ``auto`` (``slem`` for greedy requests; for others ``tli`` if at least half of the
                            draft's most frequent tokens are in the target's vocabulary, else ``slem``)
    draft_vocab_size        trim the draft model's output layer to this number of lowest (most frequent) ids. The
                            output distribution stays exact
    prompt_lookup_min/max   shortest and longest match of the ngram drafter, in tokens
    suffix_min_probability  the suffix drafter leaves out tokens whose estimated probability to be reached and accepted
                            is lower; default 0.2, or 0.03 if ``adaptive`` is ``False``
    suffix_cache_tokens     number of tokens of earlier outputs that the suffix drafter keeps, 36 bytes each
    verification            the verifier of drafts with distributions. ``auto`` couples the drafts of seeded requests
                            with the target's noise, and verifies other drafts by block. ``coupled`` couples the drafts
                            of all requests. ``block`` (all drafts of a step together) and ``standard`` (token by token)
                            couple none, so that the output of a seeded request depends on the drafter
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
    verification: str = "auto"

    @field_validator("verification")
    @classmethod
    def _registered(cls, verification: str) -> str:
        from outrider.verification.registry import VERIFIERS

        if verification not in VERIFIERS:
            raise ValueError(f"must be one of {', '.join(VERIFIERS)}")
        return verification

    @field_validator("method")
    @classmethod
    def _known(cls, method: Any) -> Any:
        known = ("auto", *get_args(KnownMethod))
        if isinstance(method, str):
            if method not in known and not _CLASS_NAME.fullmatch(method):
                raise ValueError(f"must be one of {', '.join(known)}, or package.module:Class")
        elif missing_verb(method) is not None:
            raise ValueError("must have the methods propose, observe and forget")
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
                raise ValueError(f"{key} applies to the draft model, but no 'model' is given")
        if self.tree_width > 1 and self.resolved_method not in ("draft_model", "off"):
            raise ValueError(f"tree_width={self.tree_width} needs method='draft_model', not method={self.method!r}")
        if self.method not in ("auto", "draft_model", "cross_vocab", "composite") and self.model is not None:
            raise ValueError(f"method={self.method!r} takes no draft model, but model={self.model!r} was given")
        if self.options and not self.plugin:
            raise ValueError(f"options are for method='package.module:Class', not for method={self.method!r}")
        return self

    @property
    def plugin(self) -> bool:
        """True if ``method`` is ``package.module:Class``."""
        return isinstance(self.method, str) and ":" in self.method

    @property
    def resolved_method(self) -> Any:
        """``method`` with ``auto`` resolved: a ``KnownMethod``, ``package.module:Class``, or a drafter object."""
        if self.num_speculative_tokens == 0:
            return "off"
        if self.method == "auto":
            if self.model is None:
                return "suffix"
            return "composite" if self.tree_width == 1 else "draft_model"
        return self.method

    @property
    def resolved_suffix_min_probability(self) -> float:
        """``suffix_min_probability``, or its default, which depends on ``adaptive``."""
        if self.suffix_min_probability is not None:
            return self.suffix_min_probability
        return DEFAULT_SUFFIX_MIN_PROBABILITY if self.adaptive else FIXED_SUFFIX_MIN_PROBABILITY

    @property
    def drafts_with_model(self) -> bool:
        """True if a draft model is loaded and used."""
        return self.model is not None and self.resolved_method in ("draft_model", "cross_vocab", "composite")

    @staticmethod
    def keys_of(text: str) -> dict[str, Any]:
        """The keys in a method's name or JSON object, not validated yet. Raises ``ConfigError`` for invalid JSON."""
        if not text.lstrip().startswith("{"):
            return {"method": text}
        try:
            keys: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"speculative_config is not valid JSON ({error}): {text!r}") from None
        return keys

    @classmethod
    def parse(cls, value: SpeculativeConfig | dict[str, Any] | str | None) -> SpeculativeConfig:
        """A config from ``None`` (off), a method's name, the text of a JSON object, a dict, or a ready config.

        Raises ``ConfigError`` for any other value, for an unknown key and for a value that is not allowed.
        """
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
    """Settings of one engine. Raises ``ConfigError`` that names the setting.

    model                   alias, ``.gguf`` file, folder or hub id of the target model
    dtype                   type of weights and KV cache. ``auto``: on CPU a GGUF file keeps its own formats, other
                            weights are bfloat16, and the KV cache is float16; on CUDA both are bfloat16
    quantization            ``int8`` or ``int4``: round the weights in groups of 32 at load time (CPU)
    backend                 ``native`` kernels or the torch ``reference``; ``auto`` is ``native`` on a CPU
    device                  ``auto`` is CUDA if available, else ``cpu``
    max_model_len           largest number of tokens of one request, prompt and output together; default: the model's
    max_num_seqs            largest number of requests in one step
    max_num_batched_tokens  largest number of tokens in one forward pass; longer prompts are processed in chunks
    block_size              tokens per KV block
    kv_cache_memory         memory for the KV caches of target and draft model together: bytes, or text such as
                            ``"2GiB"``; default: enough for ``max_num_seqs`` requests of full length, but at most a
                            quarter of the free memory
    prefix_caching          share K/V between requests that start with the same tokens
    seed                    base seed of the requests without a seed; default: from the operating system
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
