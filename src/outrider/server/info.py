"""What a server says about itself, and its tokenizer over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from outrider import __version__
from outrider.server.chat import template_messages
from outrider.server.errors import ApiError, bad_request, json_response
from outrider.server.logprobs import token_string
from outrider.server.metrics import CONTENT_TYPE
from outrider.server.schemas import ERRORS, DetokenizeRequest, TokenizeRequest
from outrider.server.serving import Ready, serving

router = APIRouter()


@router.get("/health", responses={503: ERRORS[503]})
async def health(request: Request) -> Response:
    """200 if requests are taken, 503 while loading, shutting down or broken."""
    state = serving(request)
    if state.status != "ready":
        raise ApiError(503, f"the server is {state.explanation}", code=state.status)
    return json_response({"status": "ready"})


@router.get("/version", responses=ERRORS)
async def version() -> Response:
    """The version of Outrider."""
    return json_response({"version": __version__})


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, 401: ERRORS[401]})
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(await asyncio.to_thread(serving(request).metrics), media_type=CONTENT_TYPE)


@router.get("/v1/models", responses=ERRORS)
async def models(request: Request) -> Response:
    """The model, under each of its names."""
    ready = serving(request).ready()
    return json_response({"object": "list", "data": [_model(ready, name) for name in ready.names]})


@router.get("/v1/models/{model:path}", responses=ERRORS)
async def model(model: str, request: Request) -> Response:
    """One model."""
    ready = serving(request).ready()
    return json_response(_model(ready, ready.check_model(model)))


@router.post("/tokenize", responses=ERRORS)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Token ids of a prompt, or of messages through the chat template."""
    ready = serving(request).ready()
    ready.check_model(body.model)
    token_ids = await asyncio.to_thread(_tokenize, ready, body)
    answer: dict[str, Any] = {"count": len(token_ids), "max_model_len": ready.max_model_len, "tokens": token_ids}
    if body.return_token_strs:
        answer["token_strs"] = [token_string(ready.tokenizer, token_id) for token_id in token_ids]
    return json_response(answer)


@router.post("/detokenize", responses=ERRORS)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Text of token ids."""
    ready = serving(request).ready()
    ready.check_model(body.model)
    size = ready.engine.engine.vocab_size
    for place, token_id in enumerate(body.tokens):
        if not 0 <= token_id < size:
            raise bad_request(f"tokens[{place}]={token_id}, but ids go from 0 to {size - 1}", f"tokens[{place}]")
    text = await asyncio.to_thread(ready.tokenizer.decode, body.tokens, False)
    return json_response({"prompt": text})


def _tokenize(ready: Ready, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("give either prompt or messages", "prompt")
    if body.messages is not None:
        text = ready.tokenizer.apply_chat_template(template_messages(body.messages))
        return ready.tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))
    special = True if body.add_special_tokens is None else body.add_special_tokens
    return ready.tokenizer.encode(body.prompt or "", add_special_tokens=special)


def _model(ready: Ready, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": ready.created,
        "owned_by": "outrider",
        "root": ready.root,
        "max_model_len": ready.max_model_len,
        "speculation": {
            **ready.engine.engine.speculation.to_dict(),
            "methods": ["auto", *ready.methods],
            "num_speculative_tokens": ready.max_drafts,
        },
        "reasoning": ready.reasoning,
        "tools": ready.tokenizer.supports_tools,
        "chat": ready.tokenizer.chat_template is not None,
    }
