"""Several answers to one prompt: one request for each going in, one output for all coming out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.outputs import RequestMetrics, RequestOutput, SpecDecodeStats
from outrider.sampling.rng import derive_seed
from outrider.sampling_params import SamplingParams


def one_each(params: SamplingParams) -> list[SamplingParams]:
    """Parameters of each of the ``n`` answers. With a seed the first keeps it and the others' are derived from it."""
    if params.n == 1:
        return [params]
    seeds = [params.seed] * params.n
    if params.seed is not None:
        seeds[1:] = [derive_seed(params.seed, index) for index in range(1, params.n)]
    # Only the first is asked for the log-probabilities of the prompt, which are the same for all.
    first = params.model_copy(update={"n": 1})
    return [first, *(first.model_copy(update={"seed": seed, "prompt_logprobs": None}) for seed in seeds[1:])]


def joined(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """The answers to one prompt as one output."""
    first, metrics = outputs[0], [output.metrics for output in outputs]
    starts = [each.first_token_time for each in metrics if each.first_token_time is not None]
    ends = [each.finish_time for each in metrics if each.finish_time is not None]
    return replace(
        first,
        outputs=[replace(output.outputs[0], index=index) for index, output in enumerate(outputs)],
        metrics=RequestMetrics(
            arrival_time=metrics[0].arrival_time,
            first_token_time=min(starts, default=None),
            finish_time=max(ends, default=None),
            speculative_decoding=SpecDecodeStats.pooled(each.speculative_decoding for each in metrics),
            speculation=metrics[0].speculation,
        ),
        finished=all(output.finished for output in outputs),
        error=next((output.error for output in outputs if output.error is not None), None),
    )
