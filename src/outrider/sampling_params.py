"""The sampling parameters of one request: how tokens are chosen and where the output ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from outrider._validation import Strict
from outrider.errors import InvalidRequestError, UserError

DEFAULT_MAX_TOKENS = 256

DISTRIBUTION_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")
"""The parameters of ``probabilities``, in the order in which they are applied to a row of logits."""

REQUEST_FIELDS: dict[str, Any] = {
    "max_tokens": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "typical_p": float,
    "n": int,
    "seed": int,
    "stop": str | list[str],
    "stop_token_ids": list[int],
    "ignore_eos": bool,
    "min_tokens": int,
    "skip_special_tokens": bool,
    "logit_bias": dict[str, float],
    "allowed_token_ids": list[int],
    "bad_words": list[str],
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "token_details": bool,
}
"""Parameters that the server's requests have under the same name, and their JSON types."""

LogprobsMode = Literal["raw", "processed"]
TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
LogitsProcessor = Callable[[tuple[int, ...], Any], Any]
"""A function of (all token ids so far, prompt first; a row of logits [vocab] in float64) that returns the new row. It
is allowed to change the row in place."""


class StructuredOutputs(Strict):
    """The format of the output. Give exactly one of these keys:

    json         an instance of this JSON schema: a dict, JSON text, or a pydantic model class
    json_object  any JSON object
    regex        a match of this regular expression, from first to last character
    grammar      a text of this grammar in Lark's notation, as llguidance reads it
    choice       one of these strings

    ``after`` is a text such as ``</think>``. The format applies to the output after it; before it, all tokens are
    allowed. The grammar starts with the token after the one that completes this text.
    """

    model_config = ConfigDict(populate_by_name=True)
    what: ClassVar[str] = "structured_outputs key"

    json_schema: Annotated[dict[str, Any] | bool | None, Field(alias="json")] = None
    json_object: Literal[True] | None = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] | None = None
    after: Annotated[str, Field(min_length=1)] | None = None

    @classmethod
    def _error(cls, message: str, field: str | None) -> UserError:
        return InvalidRequestError(message, param="structured_outputs")

    @field_validator("json_schema", mode="before")
    @classmethod
    def _schema(cls, value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, BaseModel):
            return value.model_json_schema()
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ValueError(f"is not JSON ({error})") from None
        if not isinstance(value, dict | bool):
            raise ValueError("must be a schema: a dict, the JSON text of an object, or a pydantic model class")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> StructuredOutputs:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            names = ", ".join(_KINDS.values())
            raise ValueError(
                f"give exactly one of {names}, not {' and '.join(_KINDS[kind] for kind in given) or 'none'}"
            )
        return self

    @property
    def kind(self) -> str:
        """The name of the given key: json, json_object, regex, grammar or choice."""
        return next(name for kind, name in _KINDS.items() if getattr(self, kind) is not None)


_KINDS = {
    "json_schema": "json",
    "json_object": "json_object",
    "regex": "regex",
    "grammar": "grammar",
    "choice": "choice",
}


class SamplingParams(Strict):
    """Sampling parameters of one request. Raises ``InvalidRequestError`` that names the parameter.

    Edits of a row of logits, in the order in which they are applied:

    structured_outputs  allow only tokens that keep the output in a JSON schema, regular expression, grammar or choice,
                        and an end token when it is complete: ``StructuredOutputs``, or a dict of its keys
    allowed_token_ids   allow only these tokens
    bad_token_ids       forbid these tokens or sequences of tokens
    bad_words           forbid these texts, each as tokenized alone and after a space
    logit_bias          {token id: number that is added to its logit}, -100 to 100
    repetition_penalty  divide the logits of tokens in prompt or output by it if they are positive, else multiply;
                        above 0, at most 100
    frequency_penalty   subtract it from a token's logit once per occurrence in the output, -2 to 2
    presence_penalty    subtract it once from the logit of each token in the output, -2 to 2
    min_tokens          forbid end tokens, and ignore stop strings, before this number of output tokens
    logits_processors   functions of (all token ids, row [vocab]) that return a row. They are also called for drafted
                        positions, so the result must depend on these two arguments only

    From logits to a distribution, in this order:

    temperature   0 is greedy; otherwise logits are divided by it
    top_k         keep the k most probable tokens; 0 or -1 keeps all
    top_p         keep the smallest set of most probable tokens whose mass reaches top_p, 0 < top_p <= 1
    min_p         keep tokens that are at least min_p times as probable as the most probable one
    typical_p     keep the smallest set of tokens of most typical surprisal whose mass reaches typical_p

    Other parameters:

    seed          makes the output reproducible: the same tokens alone, in a batch, with or without speculation
    n             number of answers; with a seed, answer 0 is the answer of n = 1
    max_tokens    largest number of output tokens; the end of the context ends a request too (finish_reason ``length``)
    stop          strings that end the output; they are not part of the text
    stop_token_ids  token ids that end the output, as the model's end tokens do
    skip_special_tokens  leave control tokens out of the text
    ignore_eos    continue after the model's end tokens (``stop_token_ids`` still end the output)
    logprobs      return the log-probability of each token, and of this number of most probable tokens
    prompt_logprobs  the same for prompt tokens, always of the model's own distribution
    logprobs_mode ``raw``: of the model's own distribution; ``processed``: of the distribution that the token was drawn
                  from (greedy requests: of the edited logits at temperature 1)
    token_details return how each token was made: step, probabilities of target and draft, rejected draft
    num_speculative_tokens  limit of drafted tokens per step for this request; 0 turns speculation off
    speculative_method      use only the engine's drafter of this name; ``off`` turns speculation off
    prediction    the expected output, text or token ids. Drafts are taken from it; it never changes the distribution
    """

    what: ClassVar[str] = "sampling parameter"

    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    typical_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    logit_bias: dict[TokenId, Bias] = Field(default_factory=dict)
    structured_outputs: StructuredOutputs | None = None
    allowed_token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)] | None = None
    bad_token_ids: tuple[Annotated[tuple[TokenId, ...], Field(min_length=1)], ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: Annotated[int, Field(ge=0)] = 0
    logits_processors: tuple[LogitsProcessor, ...] = ()
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    n: Annotated[int, Field(ge=1, le=1024)] = 1
    max_tokens: Annotated[int, Field(ge=1)] = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    logprobs_mode: LogprobsMode = "raw"
    token_details: bool = False
    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    speculative_method: Annotated[str, Field(min_length=1)] | None = None
    prediction: str | tuple[TokenId, ...] | None = None

    @classmethod
    def _error(cls, message: str, field: str | None) -> UserError:
        return InvalidRequestError(message, param=field)

    @field_validator("structured_outputs", mode="before")
    @classmethod
    def _of_keys(cls, value: Any) -> Any:
        return StructuredOutputs(**value) if isinstance(value, dict) else value

    @field_validator("stop", "bad_words", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    @field_validator("stop", "bad_words")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("must not contain an empty string; leave it out instead")
        return value

    @field_validator("bad_token_ids", mode="before")
    @classmethod
    def _sequences(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple((item,) if isinstance(item, int) else item for item in value)

    @model_validator(mode="after")
    def _consistent(self) -> SamplingParams:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}")
        if self.structured_outputs is not None and self.ignore_eos:
            raise ValueError("structured_outputs need an end token, so ignore_eos must not be set")
        return self

    @property
    def speculates(self) -> bool:
        """False if this request turns speculation off."""
        return self.num_speculative_tokens != 0 and self.speculative_method != "off"

    def ending_token_ids(self, end_token_ids: frozenset[int]) -> frozenset[int]:
        """All token ids that end this request, for a model with these ``end_token_ids``."""
        return (frozenset() if self.ignore_eos else end_token_ids) | frozenset(self.stop_token_ids)

    @property
    def greedy(self) -> bool:
        """True if every token is the most probable one: temperature 0 or top_k 1."""
        return self.temperature == 0.0 or self.top_k == 1
