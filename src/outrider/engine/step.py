"""One step of the decode loop: schedule, propose, run, verify, commit, learn. This file is the engine.

    accepted    a drafted token that the target's distribution let stand
    recovered   the token drawn in place of the first rejected draft
    bonus       the token after the last draft, when all were accepted
    target      the token of a pass without drafts

A step of a request with K drafts, of which a are accepted, commits a + 1 tokens from one pass over K + 1 rows. The
drafts of a tree are that many rows too. The accepted ones are a path, whose K/V are then moved into line.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from outrider.engine.logprobs import num_prompt_rows, output_logprobs, record_prompt_logprobs
from outrider.engine.token_details import output_details
from outrider.models.logits import Logits, find_argmax
from outrider.outputs import StreamPiece, TokenSource
from outrider.request_state import RequestState
from outrider.runner.model_runner import Chunk, ForwardOutput, tree_paths
from outrider.scheduler.scheduler import Grant
from outrider.speculation.costs import PassLoad
from outrider.speculation.report import RequestOutcome, StepReport
from outrider.verification.base import Proposal

if TYPE_CHECKING:
    from outrider.engine.engine import Engine

logger = logging.getLogger(__name__)

Gain = tuple[RequestState, StreamPiece]
"""What a step added to a request."""


def step(engine: Engine) -> list[Gain]:
    """Advance every scheduled request once; return what each one that gained tokens, or ended, gained."""
    begin = time.perf_counter()
    grants = engine.scheduler.schedule()
    for request in engine.scheduler.take_preempted():
        engine.speculator.forget(request.request_id)
    proposals = engine.speculator.propose(grants)
    chunks = [_chunk(grant, proposal) for grant, proposal in zip(grants, proposals, strict=True)]
    try:
        output = engine.runner.forward(chunks, engine.speculator.hidden_layers)
    except Exception as error:
        logger.exception("the target's forward pass failed")
        return [engine.fail(grant.request, f"the forward pass failed: {error}") for grant in grants]
    gains, outcomes = _advance_all(engine, grants, proposals, output)
    load = PassLoad.of((chunk.start, len(chunk.token_ids)) for chunk in chunks)
    engine.speculator.learn(StepReport(outcomes, load, output.seconds, time.perf_counter() - begin))
    return gains


def _chunk(grant: Grant[RequestState], proposal: Proposal) -> Chunk:
    """The committed tokens granted, then the drafts. Every row from the last committed token on is scored.

    Rows before it are scored only for log-probabilities of the prompt.
    """
    request = grant.request
    start = request.num_computed_tokens
    token_ids = request.token_ids[start : start + grant.num_tokens]
    num_logits = max(_num_scored(grant, proposal), num_prompt_rows(request, grant.num_tokens) + len(proposal))
    if not len(proposal):
        return Chunk(request.request_id, token_ids, start, num_logits)
    token_ids += proposal.token_ids
    if proposal.parents is None:
        return Chunk(request.request_id, token_ids, start, num_logits)
    paths = tree_paths(proposal.parents, request.num_tokens)
    return Chunk(request.request_id, token_ids, start, num_logits, request.num_tokens, paths)


def _num_scored(grant: Grant[RequestState], proposal: Proposal) -> int:
    return len(proposal) + 1 if grant.scores else 0


def _advance_all(
    engine: Engine, grants: list[Grant[RequestState]], proposals: list[Proposal], output: ForwardOutput
) -> tuple[list[Gain], list[RequestOutcome]]:
    """Verify and commit each request by its logits. One that fails ends with an error, and the others go on."""
    scored = [
        logits[len(logits) - _num_scored(grant, proposal) :]
        for grant, proposal, logits in zip(grants, proposals, output.logits, strict=True)
    ]
    find_argmax(
        [rows for grant, rows in zip(grants, scored, strict=True) if len(rows) and grant.request.follows_argmax]
    )
    gains, outcomes = [], []
    for place, (grant, proposal) in enumerate(zip(grants, proposals, strict=True)):
        begin, request, nodes = time.perf_counter(), grant.request, tuple[int, ...]()
        before = request.num_tokens
        try:
            record_prompt_logprobs(request, output.logits[place])
            gain, nodes = _advance(engine, grant, proposal, scored[place])
        except Exception as error:
            logger.exception("request %s failed", request.request_id)
            gain = engine.fail(request, str(error))
        if gain is not None:
            gains.append(gain)
        gained = request.num_tokens - before
        accepted = min(len(nodes), gained)  # an end inside the drafts cuts off what was accepted after it
        hidden = output.hidden[place]
        if hidden is not None:
            hidden = hidden[[len(hidden) - len(scored[place]) + row for row in (0, *(n + 1 for n in nodes[:accepted]))]]
        seconds = time.perf_counter() - begin
        outcomes.append(
            RequestOutcome(request, grant.decodes, proposal, accepted, gained, len(scored[place]), seconds, hidden)
        )
    return gains, outcomes


def _advance(
    engine: Engine, grant: Grant[RequestState], proposal: Proposal, logits: Logits
) -> tuple[Gain | None, tuple[int, ...]]:
    """Verify and commit one request by ``logits`` [1 + drafts, vocab], or [0, vocab] inside a prompt.

    Returns what it gained, and the accepted drafts.
    """
    request, tokens, nodes = grant.request, list[tuple[int, TokenSource]](), tuple[int, ...]()
    if grant.scores:
        result = engine.verify(request, proposal, logits, request.noise.at_step(request.num_tokens))
        nodes = result.nodes
        tokens = [(proposal.token_ids[node], "accepted") for node in nodes]
        tokens.append((result.token_id, result.source))
        engine.runner.keep_path(request.request_id, request.num_tokens, nodes)
    logprobs = output_logprobs(request, [token_id for token_id, _ in tokens], logits, nodes)
    details = output_details(request, proposal, tokens, logits, nodes, engine.token_text)
    appended = engine.scheduler.commit(grant, tokens)
    if not appended:
        return None, nodes
    request.logprobs += logprobs[:appended]
    request.details += details[:appended]
    accepted = min(len(nodes), appended)
    request.metrics.speculative_decoding.record(len(proposal), accepted, proposal.depth, proposal.note)
    if request.metrics.first_token_time is None:
        request.metrics.first_token_time = time.monotonic()
    return (request, engine.piece(request, appended)), nodes
