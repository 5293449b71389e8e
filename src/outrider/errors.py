"""Every exception that Outrider raises on purpose.

    OutriderError
    ├── UserError                  something given from outside does not fit; the CLI exits with 2
    │   ├── ConfigError            an engine or speculative setting
    │   ├── InvalidRequestError    a prompt or sampling parameter; names the parameter in ``param``
    │   ├── ModelNotFoundError     no such alias, file, folder or hub id
    │   ├── ModelFormatError       a model file that is damaged or not supported
    │   └── VocabularyMismatchError  a draft model whose tokens are not the target's
    ├── RequestFailedError         one request failed; the others go on
    ├── QueueFullError             too many requests wait already; the same request may be served later
    ├── EngineUnavailableError     the engine is loading, shutting down or broken, and takes no requests
    └── IntegrityError             a bug in Outrider: blocks or counters do not add up

Messages are one line: what was given, what is allowed, what to do.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of all errors raised on purpose."""


class UserError(OutriderError):
    """Something that the caller gave does not fit. The CLI prints it and exits with 2."""


class ConfigError(UserError):
    """An engine or speculative-decoding setting is out of range or unknown."""


class InvalidRequestError(UserError):
    """A prompt or sampling parameter does not fit.

    ``param`` names the field, as OpenAI's error objects do.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ModelNotFoundError(UserError):
    """No alias, file, folder or hub id of that name."""


class ModelFormatError(UserError):
    """A model file is damaged, incomplete, or of a kind that is not supported."""


class VocabularyMismatchError(UserError):
    """The draft model's tokens differ from the target's."""


class RequestFailedError(OutriderError):
    """One request ended with an error; its blocks are free and the others went on."""


class QueueFullError(OutriderError):
    """Too many requests wait already; nothing was taken on, and the same request may be served later."""


class EngineUnavailableError(OutriderError):
    """The engine takes no requests: it is loading, shutting down, closed, or broken."""


class IntegrityError(OutriderError):
    """Counters or blocks do not add up: a bug in Outrider, never a user's mistake."""


def counted(count: int, noun: str) -> str:
    """``1 token``, ``2 tokens``: for messages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
