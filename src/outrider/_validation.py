"""Pydantic with one-line error messages. Knows nothing about any particular setting."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from outrider.errors import ConfigError, UserError


def describe(error: ValidationError, what: str, fields: list[str]) -> tuple[str, str | None]:
    """Return ``(message, field)`` for the first problem in ``error``, on one line."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or None
    given = first.get("input")
    if first["type"] == "extra_forbidden":
        return f"unknown {what} {field!r}; known are: {', '.join(fields)}", field
    if first["type"] == "missing":
        return f"{what} {field!r} is required", field
    reason = first["msg"].removeprefix("Value error, ")
    if field is None:
        return f"{what}: {reason}", None
    return f"{what} {field}={given!r}: {reason[0].lower()}{reason[1:]}", field


class Strict(BaseModel):
    """Frozen, unknown keys refused, validated once; raises ``error_type`` with one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    what: ClassVar[str] = "setting"
    error_type: ClassVar[type[UserError]] = ConfigError

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            message, field = describe(error, self.what, sorted(type(self).model_fields))
            raise self._error(message, field) from None

    @classmethod
    def _error(cls, message: str, field: str | None) -> UserError:
        return cls.error_type(message)
