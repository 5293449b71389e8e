"""How one request wants its tokens chosen and where it wants them to end."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from outrider._validation import Strict
from outrider.errors import InvalidRequestError, UserError

DEFAULT_MAX_TOKENS = 256


class SamplingParams(Strict):
    """Sampling parameters of one request. Raises ``InvalidRequestError`` naming the field.

    temperature   0 is greedy; otherwise logits are divided by it
    top_k         keep the k most probable tokens; 0 or -1 keeps all
    top_p         keep the smallest set of most probable tokens whose mass reaches top_p, 0 < top_p <= 1
    seed          fixes the answer: the same tokens alone, in a batch, with or without speculation
    max_tokens    at most this many new tokens
    stop          strings that end the text; they are not part of it
    stop_token_ids  ids that end the output, as the model's own end tokens do
    ignore_eos    go on after the model's end tokens (``stop_token_ids`` still end)
    num_speculative_tokens  a cap on the drafted tokens per step of this request; 0 turns speculation off
    """

    what: ClassVar[str] = "sampling parameter"

    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_speculative_tokens: Annotated[int, Field(ge=0, le=64)] | None = None

    @classmethod
    def _error(cls, message: str, field: str | None) -> UserError:
        return InvalidRequestError(message, param=field)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("a stop string must not be empty; leave it out instead")
        return value

    @property
    def greedy(self) -> bool:
        """True when every token is the most probable one."""
        return self.temperature == 0.0 or self.top_k == 1
