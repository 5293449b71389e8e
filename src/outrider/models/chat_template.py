"""Chat templates as model files carry them, rendered in a sandbox. Knows nothing about tokens.

The environment is the one that Hugging Face templates are written for: block trimming, loop controls, ``tojson``
that leaves text as it is, ``raise_exception``, ``strftime_now``, and the ``generation`` tag, which marks the
assistant's text for training and only passes its body through here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from jinja2 import Template


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``InvalidRequestError``, naming the index, unless each message has a string ``role`` and ``content``."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages must be a list of objects with role and content, not {type(messages).__name__}", param="messages"
        )
    if not messages:
        raise InvalidRequestError("messages is empty; give at least one message", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(
                f"messages[{index}] must be an object with role and content, not {type(message).__name__}",
                param="messages",
            )
        for key in ("role", "content"):
            if key not in message:
                raise InvalidRequestError(f"messages[{index}] lacks {key!r}", param="messages")
            if not isinstance(message[key], str):
                raise InvalidRequestError(
                    f"messages[{index}].{key} must be a string, not {type(message[key]).__name__}", param="messages"
                )
        if not message["role"]:
            raise InvalidRequestError(f"messages[{index}].role is empty", param="messages")


class ChatTemplate:
    """A compiled template. Raises ``InvalidRequestError`` if the text is not a template that can be compiled."""

    def __init__(self, source: str) -> None:
        from jinja2 import TemplateError

        try:
            self._template = _compile(source)
        except TemplateError as error:
            raise InvalidRequestError(f"the model's chat template is damaged: {_one_line(error)}") from None

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The conversation as one text.

        Raises ``InvalidRequestError`` for messages without role and content, and with the template's own words if
        it refuses the conversation.
        """
        from jinja2 import TemplateError

        check_messages(messages)
        try:
            return self._template.render(messages=[dict(message) for message in messages], **variables)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {_one_line(error)}", param="messages"
            ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _compile(source: str) -> Template:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - the base class declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(source)
