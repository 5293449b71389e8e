"""What the server itself is told, apart from the engine's settings."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from outrider._validation import Strict
from outrider.engine.async_engine import DEFAULT_MAX_WAITING
from outrider.server.reasoning import ReasoningStyle


class ServerSettings(Strict):
    """Settings of one server.

    served_model_names  what requests may call the model; default: the name of what was loaded
    api_key             if given, requests must bring it as ``Authorization: Bearer …``
    cors_origins        origins whose pages may call; ``*`` is any
    max_waiting         requests that may wait beyond those that run
    max_body_bytes      a larger body is refused
    body_timeout_s      a body that takes longer to arrive is refused, seconds
    grace_s             on SIGTERM running requests have so many seconds to end
    ping_s              a stream that has nothing to say for so many seconds sends a comment
    reasoning_parser    whether thoughts are told from the answers of chats
    chat_template       text of a Jinja template that replaces the model's own
    """

    what: ClassVar[str] = "server setting"

    served_model_names: tuple[str, ...] = ()
    api_key: Annotated[str | None, Field(min_length=1, repr=False)] = None
    cors_origins: tuple[str, ...] = ()
    max_waiting: Annotated[int, Field(ge=0)] = DEFAULT_MAX_WAITING
    max_body_bytes: Annotated[int, Field(ge=1)] = 10 * 2**20
    body_timeout_s: Annotated[float, Field(gt=0.0)] = 60.0
    grace_s: Annotated[float, Field(ge=0.0)] = 30.0
    ping_s: Annotated[float, Field(gt=0.0)] = 15.0
    reasoning_parser: ReasoningStyle = "auto"
    chat_template: str | None = None
