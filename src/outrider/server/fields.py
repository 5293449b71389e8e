"""From a request's fields to ``SamplingParams``: what is honoured, what is refused by name, what is only logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outrider.config import MAX_SPECULATIVE_TOKENS
from outrider.errors import InvalidRequestError
from outrider.sampling_params import DEFAULT_MAX_TOKENS, REQUEST_FIELDS, SamplingParams, StructuredOutputs
from outrider.server.errors import bad_request
from outrider.server.schemas import GenerationRequest

logger = logging.getLogger(__name__)

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0,),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "store": (False,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that other servers honour and this one does not -> the values that change nothing."""

_WITHOUT_EFFECT = frozenset(
    [
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
    ]
)
"""Fields that say nothing about the answer itself; not worth a line in the log."""


def check_known(request: GenerationRequest) -> None:
    """Refuse fields that are known but can not be honoured; log the names of unknown ones."""
    extra = request.model_extra or {}
    for name, value in extra.items():
        if name in _UNSUPPORTED and value is not None and value not in _UNSUPPORTED[name]:
            instead = "; use structured_outputs" if name.startswith("guided_") else ""
            raise bad_request(f"{name} is not supported{instead or '; leave it out'}", name)
    unknown = sorted(extra.keys() - _UNSUPPORTED.keys() - _WITHOUT_EFFECT)
    if unknown:
        names = ", ".join(repr(name[:40]) for name in unknown[:10])
        logger.info("unknown fields without effect: %s", names)
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options need stream=true", "stream_options")


def sampling_params(request: GenerationRequest, methods: Sequence[str], max_drafts: int, **more: Any) -> SamplingParams:
    """The request's parameters; ``more`` are set by the route. ``methods`` and ``max_drafts``: see ``speculation``.

    Raises ``ApiError`` naming the field, or ``InvalidRequestError`` naming the parameter (see ``named``).
    """
    check_known(request)
    values = {name: value for name in REQUEST_FIELDS if (value := getattr(request, name)) is not None}
    values |= {name: value for name, value in more.items() if value is not None}
    if request.prompt_logprobs is not None:
        if request.stream:
            raise bad_request("prompt_logprobs can not be streamed; leave stream out", "prompt_logprobs")
        values["prompt_logprobs"] = request.prompt_logprobs
    values |= speculation(request.speculative_config, methods, max_drafts)
    if (text := predicted_text(request)) is not None:
        values["prediction"] = text
    if (request.min_tokens or 0) > (limit := values.get("max_tokens", DEFAULT_MAX_TOKENS)):
        raise bad_request(f"min_tokens={request.min_tokens} is above the {limit} tokens that may come", "min_tokens")
    if request.ignore_eos and values.get("structured_outputs") is not None:
        raise bad_request(
            "ignore_eos can not be set where the answer's form is given, which says its end", "ignore_eos"
        )
    return SamplingParams(**values)


@contextmanager
def named(**names: str) -> Iterator[None]:
    """Errors that name a sampling parameter name the request's field instead, where that is called otherwise."""
    try:
        yield
    except InvalidRequestError as error:
        parameter = (error.param or "").split(".")[0]
        message = str(error).removeprefix("sampling parameter ")
        raise bad_request(message, names.get(parameter, parameter) or None) from None


def predicted_text(request: GenerationRequest) -> str | None:
    """The text of ``prediction``."""
    prediction = request.prediction
    if prediction is None or isinstance(prediction, str):
        return prediction
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


def structured_outputs(request: GenerationRequest) -> StructuredOutputs | None:
    """What ``response_format`` or ``structured_outputs`` asks for."""
    wanted = request.response_format
    if request.structured_outputs is not None:
        if wanted is not None and wanted.type != "text":
            raise bad_request("give either response_format or structured_outputs", "structured_outputs")
        return StructuredOutputs(**request.structured_outputs)
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return StructuredOutputs(json_object=True)
    if wanted.json_schema is None:
        raise bad_request(
            "response_format.json_schema is required with type json_schema", "response_format.json_schema"
        )
    return StructuredOutputs(json_schema=wanted.json_schema.json_schema)


def format_field(request: GenerationRequest) -> str:
    """The field that says what the answer must be."""
    return "structured_outputs" if request.structured_outputs is not None else "response_format"


def speculation(wanted: str | dict[str, Any] | None, methods: Sequence[str], most: int) -> dict[str, Any]:
    """The sampling parameters that ``speculative_config`` comes to.

    ``methods`` are those that this engine's requests may choose, and ``most`` is the K that they may lower.
    """
    if wanted is None:
        return {}
    keys = {"method": wanted} if isinstance(wanted, str) else wanted
    unknown = sorted(keys.keys() - {"method", "num_speculative_tokens"})
    if unknown:
        raise bad_request(
            f"speculative_config.{unknown[0]} is set when the server starts; a request may give method and "
            f"num_speculative_tokens",
            "speculative_config",
        )
    method, count = keys.get("method"), keys.get("num_speculative_tokens")
    if method not in (None, "auto", *methods):
        available = ", ".join(["auto", *methods])
        raise bad_request(
            f"speculative_config.method={method!r} is not at work here; available are: {available}",
            "speculative_config",
        )
    chosen: dict[str, Any] = {} if method in (None, "auto") else {"speculative_method": method}
    if count is None or method == "off":
        return chosen
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_SPECULATIVE_TOKENS:
        raise bad_request(
            f"speculative_config.num_speculative_tokens={count!r} must be an integer from 0 to "
            f"{MAX_SPECULATIVE_TOKENS}",
            "speculative_config",
        )
    if count > most:
        raise bad_request(
            f"speculative_config.num_speculative_tokens={count} is above this server's {most}; ask for at most that",
            "speculative_config",
        )
    return chosen | {"num_speculative_tokens": count}
