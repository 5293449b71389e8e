"""``outrider serve``: a model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import json
import logging
import os
from typing import Annotated

import typer

from outrider.cli import _options as options


def serve(
    model: options.Model,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", help="Requests must bring this key. Better in OUTRIDER_API_KEY, which ps hides."),
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option("--served-model-name", help="What requests call the model; may be repeated.")
    ] = None,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", help="Most requests that run at a time.")] = 64,
    max_waiting: Annotated[int, typer.Option("--max-waiting", help="Most requests that wait; more get a 429.")] = 256,
    kv_cache_memory: options.KVCacheMemory = None,
    dtype: options.DtypeOption = "auto",
    quantization: options.Quantization = None,
    backend: options.BackendOption = "auto",
    device: options.Device = "auto",
    speculative_config: options.Speculative = "auto",
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculative = None,
    chat_template: Annotated[
        str | None, typer.Option("--chat-template", help="A Jinja file in place of the model's own template.")
    ] = None,
    reasoning_parser: Annotated[
        str,
        typer.Option(
            "--reasoning-parser",
            help="Tell thoughts, <think>…</think>, from answers: think, off, or auto, which asks the chat template.",
        ),
    ] = "auto",
    cors_origin: Annotated[
        list[str] | None, typer.Option("--cors-origin", help="Let pages of this origin call; * is any; repeatable.")
    ] = None,
    max_body_size: Annotated[str, typer.Option("--max-body-size", help="A larger request gets a 413.")] = "10MiB",
    grace_seconds: Annotated[
        float, typer.Option("--grace-seconds", help="On SIGTERM running requests have so long to end.", min=0.0)
    ] = 30.0,
    log_format: Annotated[str, typer.Option("--log-format", help="text or json.")] = "text",
) -> None:
    """Serve a model to OpenAI's clients."""
    from outrider.errors import ConfigError

    if log_format not in ("text", "json"):
        raise ConfigError(f"--log-format {log_format!r} must be text or json")
    if reasoning_parser not in ("auto", "think", "off"):
        raise ConfigError(f"--reasoning-parser {reasoning_parser!r} must be auto, think or off")
    from outrider.server.logs import configure_logging
    from outrider.server.run import listen, run
    from outrider.server.settings import ServerSettings

    key = api_key if api_key is not None else os.environ.get("OUTRIDER_API_KEY")
    settings = ServerSettings(
        served_model_names=tuple(served_model_name or ()),
        api_key=key or None,
        cors_origins=tuple(cors_origin or ()),
        max_waiting=max_waiting,
        max_body_bytes=options.num_bytes("--max-body-size", max_body_size),
        grace_s=grace_seconds,
        reasoning_parser=reasoning_parser,  # type: ignore[arg-type]
        chat_template=None if chat_template is None else options.read_text("--chat-template", chat_template),
    )
    config = options.fetch(
        model,
        options.speculative_dict(speculative_config, draft_model, num_speculative_tokens),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        kv_cache_memory=None if kv_cache_memory is None else options.num_bytes("--kv-cache-memory", kv_cache_memory),
        dtype=dtype,
        quantization=quantization,
        backend=backend,
        device=device,
    )
    listener = listen(host, port)
    name = settings.served_model_names[0] if settings.served_model_names else _short_name(model)
    typer.echo(welcome(name, host, listener.getsockname()[1], keyed=settings.api_key is not None), err=True)
    verbose = bool(os.environ.get("OUTRIDER_TRACEBACK"))
    configure_logging(log_format, logging.DEBUG if verbose else logging.INFO)  # type: ignore[arg-type]
    run(config, settings, listener)


def welcome(model: str, host: str, port: int, *, keyed: bool) -> str:
    """Lines to paste, and where the page is."""
    address = f"[{host}]" if ":" in host else host
    address = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(address, address)
    url = f"http://{address}:{port}"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    header = ' -H "Authorization: Bearer $OUTRIDER_API_KEY"' if keyed else ""
    key = 'os.environ["OUTRIDER_API_KEY"]' if keyed else '"none"'
    imports = "import os; from openai import OpenAI" if keyed else "from openai import OpenAI"
    return f"""\
Playground: {url}/

curl {url}/v1/chat/completions{header} -H "Content-Type: application/json" -d '{body}'

{imports}
client = OpenAI(base_url="{url}/v1", api_key={key})
answer = client.chat.completions.create(model={json.dumps(model)}, messages=[{{"role": "user", "content": "Hello!"}}])
print(answer.choices[0].message.content)

Requests get a 503 until the model is loaded, which the log tells with "ready".
"""


def _short_name(model: str) -> str:
    """What the model will be called unless told otherwise."""
    from outrider.models.loader.resolve import resolve

    return resolve(model).name
