"""``outrider generate``: one prompt, or a file of it, to text on stdout."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import _options as options

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.sampling_params import SamplingParams


def generate(
    model: options.Model,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The prompt.")] = None,
    prompt_file: Annotated[str | None, typer.Option("--prompt-file", help="Read the prompt here; - is stdin.")] = None,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    logprobs: options.Logprobs = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = False,
    json_schema: options.JsonSchema = None,
    json_object: options.JsonObject = False,
    regex: options.Regex = None,
    grammar_file: options.GrammarFile = None,
    choice: options.Choice = None,
    prediction_file: options.PredictionFile = None,
    speculative_config: options.Speculative = "auto",
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculative = None,
    dtype: options.DtypeOption = "auto",
    quantization: options.Quantization = None,
    backend: options.BackendOption = "auto",
    device: options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory: options.KVCacheMemory = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why it speculated as it did.")] = False,
    json_path: Annotated[str | None, typer.Option("--json", help="Write result and figures here; - is stdout.")] = None,
) -> None:
    """Generate text from a prompt."""
    params = options.sampling_params(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        logprobs=logprobs,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        structured_outputs=options.structured_outputs(json_schema, json_object, regex, grammar_file, choice),
        prediction=None if prediction_file is None else options.read_text("--prediction-file", prediction_file),
    )
    speculative = options.speculative_dict(speculative_config, draft_model, num_speculative_tokens)
    text = _prompt(prompt, prompt_file)
    llm = options.load(
        model,
        speculative,
        dtype=dtype,
        quantization=quantization,
        backend=backend,
        device=device,
        max_model_len=max_model_len,
        kv_cache_memory=None if kv_cache_memory is None else options.num_bytes("--kv-cache-memory", kv_cache_memory),
    )
    report = run(llm, text, params, show=json_path != "-", explain=explain)
    if json_path is not None:
        from outrider.cli._report import environment, write_json

        arguments = {"model": model, "speculative_config": speculative, **params.model_dump(mode="json")}
        write_json({**report, **environment(arguments)}, json_path)


def run(llm: LLM, prompt: str, params: SamplingParams, *, show: bool, explain: bool = False) -> dict[str, Any]:
    """Generate, with the text on stdout as it comes and a summary on stderr; return the figures."""
    from outrider.cli._explain import explain as explained
    from outrider.errors import counted

    for piece in llm.stream(prompt, params):
        if show:
            sys.stdout.write(piece.text if piece.output is None else f"{piece.text}\n")
            sys.stdout.flush()
    output = piece.output
    assert output is not None, "the last piece of a stream has it"
    completion, metrics = output.outputs[0], output.metrics
    stats = metrics.speculative_decoding
    ttft = metrics.time_to_first_token or 0.0
    seconds = (metrics.finish_time or 0.0) - metrics.arrival_time
    rate = (len(completion.token_ids) - 1) / (seconds - ttft) if seconds > ttft else 0.0
    typer.echo(
        f"{counted(len(completion.token_ids), 'token')}, finished by {completion.finish_reason}; first token after "
        f"{ttft:.2f} s, then {rate:.1f} tokens/s; speculation {metrics.speculation}; "
        f"{stats.num_accepted_draft_tokens} of {counted(stats.num_draft_tokens, 'draft')} accepted",
        err=True,
    )
    if explain:
        typer.echo("\n".join([llm.memory.describe(), *explained(llm.engine, metrics)]), err=True)
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "logprobs": None if completion.logprobs is None else [asdict(each) for each in completion.logprobs],
        "sources": list(completion.sources),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "time_to_first_token_s": ttft,
        "tokens_per_s": rate,
        "speculation": metrics.speculation.to_dict(),
        "metrics": {"speculative_decoding": stats.to_dict(detailed=True)},
    }


def _prompt(prompt: str | None, prompt_file: str | None) -> str:
    from outrider.errors import InvalidRequestError

    if (prompt is None) == (prompt_file is None):
        raise InvalidRequestError("give either --prompt or --prompt-file", param="prompt")
    if prompt is not None:
        return prompt
    return options.read_text("--prompt-file", str(prompt_file))
