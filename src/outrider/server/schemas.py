"""What requests may hold. Types are checked here; ranges where they are used, in ``SamplingParams``.

Fields that are not listed are accepted (``fields.py`` says what becomes of them). A null is a field left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from outrider.sampling_params import REQUEST_FIELDS
from outrider.server.errors import ErrorResponse

Role = Literal["system", "developer", "user", "assistant", "tool"]
Prompt = str | list[str] | list[int] | list[list[int]]

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "A field does not fit; `param` names it"},
    401: {"model": ErrorResponse, "description": "The API key is missing or wrong"},
    404: {"model": ErrorResponse, "description": "No such model"},
    408: {"model": ErrorResponse, "description": "The body took too long to arrive"},
    413: {"model": ErrorResponse, "description": "The body is too large"},
    429: {"model": ErrorResponse, "description": "Too many requests wait; see Retry-After"},
    500: {"model": ErrorResponse, "description": "The request failed in the engine"},
    503: {"model": ErrorResponse, "description": "Loading or shutting down; see Retry-After"},
}
"""Answers that every route may give, for the OpenAPI document."""


class Fields(BaseModel):
    """Types as JSON has them: no number for a string, no string for a number."""

    model_config = ConfigDict(strict=True, extra="allow")


class FunctionCall(Fields):
    """A call that an earlier answer made; ``arguments`` is JSON as text."""

    name: str
    arguments: str


class ToolCall(Fields):
    """One of an earlier answer's calls."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ContentPart(Fields):
    """A part of a message; only text can be read."""

    type: str
    text: str | None = None


class Message(Fields):
    """One turn of the conversation."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(Fields):
    """A function that the model may call; ``parameters`` is a JSON schema of an object."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    """A tool; only functions are known."""

    type: Literal["function"]
    function: Function


class FunctionName(Fields):
    """Which function."""

    name: str


class NamedTool(Fields):
    """The one tool that is to be called."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(Fields):
    """A schema that the answer is to be an instance of."""

    name: str | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | bool, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Fields):
    """What the answer is to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class PredictedText(Fields):
    """A part of a prediction."""

    type: Literal["text"] = "text"
    text: str


class Prediction(Fields):
    """What the answer will probably be; makes it faster where it is right, never different."""

    type: Literal["content"] = "content"
    content: str | list[PredictedText]


class StreamOptions(Fields):
    """What a stream says beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


if TYPE_CHECKING:

    class SamplingFields(Fields):
        """The sampling parameters that the server's own code reads."""

        max_tokens: int | None
        n: int | None
        ignore_eos: bool | None
        min_tokens: int | None
        skip_special_tokens: bool | None
        token_details: bool | None
        temperature: float | None
        seed: int | None

else:
    SamplingFields = create_model(
        "SamplingFields", __base__=Fields, **{name: (kind | None, None) for name, kind in REQUEST_FIELDS.items()}
    )


class GenerationRequest(SamplingFields):
    """What chats and completions have in common."""

    model: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    prediction: Prediction | str | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    speculative_config: str | dict[str, Any] | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    detailed_metrics: bool | None = None


class ChatCompletionRequest(GenerationRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerationRequest):
    """Body of ``POST /v1/completions``."""

    prompt: Prompt
    logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(Fields):
    """Body of ``POST /tokenize``: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Fields):
    """Body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]
