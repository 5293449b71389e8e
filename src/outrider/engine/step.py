"""One step of the decode loop: schedule, propose, run, verify, commit, observe. This file is the engine.

    accepted    a drafted token that the target's distribution let stand
    recovered   the token drawn in place of the first rejected draft
    bonus       the token after the last draft, when all were accepted
    target      the token of a pass without drafts

A step of a request with K drafts, of which a are accepted, commits a + 1 tokens from one pass over K + 1 rows. The
drafts of a tree are that many rows too, and the accepted ones a path, whose K/V are then brought in line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outrider.drafters.base import Drafter, DraftRequest, Proposal
from outrider.engine.logprobs import num_prompt_rows, output_logprobs, record_prompt_logprobs
from outrider.engine.token_details import output_details
from outrider.engine.verify import greedy_choices
from outrider.models.logits import Logits
from outrider.outputs import StreamPiece, TokenSource
from outrider.request import Request
from outrider.runner.model_runner import Chunk, tree_paths
from outrider.scheduler.costs import Load
from outrider.scheduler.scheduler import Grant
from outrider.verification.base import ProposalNote, check_proposal

if TYPE_CHECKING:
    from outrider.engine.engine import Engine

logger = logging.getLogger(__name__)


def step(engine: Engine) -> list[tuple[Request, StreamPiece]]:
    """Advance every scheduled request once; return what each one that gained tokens, or ended, gained."""
    begin = time.perf_counter()
    grants = engine.scheduler.schedule()
    for request in engine.scheduler.take_preempted():
        engine.forget_drafts(request)
    decoding = [grant for grant in grants if grant.scores and grant.num_tokens == 1]
    prompts = [grant for grant in grants if not grant.scores or grant.num_tokens > 1]
    engine.controller.begin_step([grant.request for grant in decoding], _load(decoding), _load(prompts))
    before_drafting = time.perf_counter()
    proposals = _propose(engine, [grant for grant in grants if grant.max_drafts])
    drafted = [proposals.get(grant.request.request_id, _undrafted(engine, grant)) for grant in grants]
    chunks = [_chunk(grant, proposal) for grant, proposal in zip(grants, drafted, strict=True)]
    load, before_pass = _load(grants, drafted), time.perf_counter()
    try:
        logits = engine.runner.forward(chunks).logits
    except Exception as error:
        logger.exception("the target's forward pass failed")
        return [engine.fail(grant.request, f"the forward pass failed: {error}") for grant in grants]
    after_pass = since = time.perf_counter()
    greedy = _greedy_choices(engine, grants, drafted, logits)
    outcomes = []
    for grant, proposal, rows in zip(grants, drafted, logits, strict=True):
        try:
            outcome = _advance(engine, grant, proposal, rows, greedy.get(grant.request.request_id, ()))
        except Exception as error:
            logger.exception("request %s failed", grant.request.request_id)
            outcome = engine.fail(grant.request, str(error))
        if outcome is not None:
            outcomes.append(outcome)
        now = time.perf_counter()
        engine.controller.observe_rows(grant.request, len(rows), now - since)
        since = now
    times = _StepTimes(before_pass - before_drafting, after_pass - before_pass, since - before_pass, since - begin)
    _account(engine, decoding, proposals, outcomes, load, times)
    return outcomes


@dataclass(frozen=True)
class _StepTimes:
    """Seconds of a step: drafting, the pass, the pass and all that judges its rows, and the whole."""

    drafting: float
    forward: float
    verifying: float
    whole: float


def _account(
    engine: Engine,
    decoding: Sequence[Grant],
    proposals: Mapping[str, Proposal],
    outcomes: Sequence[tuple[Request, StreamPiece]],
    load: Load,
    times: _StepTimes,
) -> None:
    """Tell the controller what the step cost and brought, and put it down with each request that decoded."""
    gained = {request.request_id: len(piece.token_ids) for request, piece in outcomes}
    plain_seconds = engine.controller.plain_seconds()
    for grant in decoding:
        proposal = proposals.get(grant.request.request_id, Proposal())
        grant.request.metrics.speculative_decoding.add_times(
            gained.get(grant.request.request_id, 0),
            0.0 if proposal.note is None else proposal.note.expected,
            draft_seconds=times.drafting if len(proposal) else 0.0,
            verify_seconds=times.verifying,
            step_seconds=times.whole,
            plain_seconds=plain_seconds,
        )
    gained_decoding = sum(gained.get(grant.request.request_id, 0) for grant in decoding)
    engine.controller.end_step(load, times.forward, times.whole, gained_decoding)


def _load(grants: Sequence[Grant], proposals: Sequence[Proposal] = ()) -> Load:
    """What a pass over the granted tokens holds, and over the drafts of ``proposals`` behind them."""
    total = Load()
    for place, grant in enumerate(grants):
        rows = grant.num_tokens + (len(proposals[place]) if proposals else 0)
        context = grant.request.num_computed_tokens + rows
        total += Load(rows, context, rows * context - rows * (rows - 1) // 2, 1)
    return total


def _chunk(grant: Grant, proposal: Proposal) -> Chunk:
    """The committed tokens granted, then the drafts; every row from the last committed token on is scored.

    Rows before that are there for the log-probabilities of the prompt, if they are wanted.
    """
    request = grant.request
    start = request.num_computed_tokens
    committed = request.token_ids[start : start + grant.num_tokens]
    num_logits = max(_num_scored(grant, proposal), num_prompt_rows(request, grant.num_tokens) + len(proposal))
    token_ids = [*committed, *proposal.token_ids]
    if proposal.parents is None:
        return Chunk(request.request_id, token_ids, start, num_logits)
    paths = tree_paths(proposal.parents, request.num_tokens)
    return Chunk(request.request_id, token_ids, start, num_logits, request.num_tokens, paths)


def _num_scored(grant: Grant, proposal: Proposal) -> int:
    return len(proposal) + 1 if grant.scores else 0


def _scored_rows(grant: Grant, proposal: Proposal, rows: Logits) -> Logits:
    """Of ``rows`` those that the verifier judges: [1 + drafts, vocab], or [0, vocab] inside a prompt."""
    surplus = len(rows) - _num_scored(grant, proposal)
    return rows[surplus:] if surplus else rows


def _greedy_choices(
    engine: Engine, grants: Sequence[Grant], drafted: Sequence[Proposal], logits: Sequence[Logits]
) -> dict[str, list[int]]:
    scored = [(g, p, rows) for g, p, rows in zip(grants, drafted, logits, strict=True) if g.scores]
    return greedy_choices([(g.request, engine.sampler(g.request), _scored_rows(g, p, rows)) for g, p, rows in scored])


def _advance(
    engine: Engine, grant: Grant, proposal: Proposal, rows: Logits, greedy_ids: Sequence[int]
) -> tuple[Request, StreamPiece] | None:
    """Verify and commit one request; the last of ``rows`` are those that are judged."""
    request, tokens, nodes = grant.request, list[tuple[int, TokenSource]](), tuple[int, ...]()
    record_prompt_logprobs(request, rows)
    rows = _scored_rows(grant, proposal, rows)
    if grant.scores:
        known = {"greedy_ids": greedy_ids} if greedy_ids else {}
        result = engine.verify(request, proposal, rows, engine.noise(request), engine.sampler(request), **known)
        nodes = result.nodes
        tokens += [(proposal.token_ids[node], "accepted") for node in nodes]
        tokens.append((result.token_id, result.source))
        engine.runner.keep_path(request.request_id, request.num_tokens, nodes)
    logprobs = output_logprobs(request, engine.sampler(request), [token_id for token_id, _ in tokens], rows, nodes)
    details = output_details(request, engine.sampler(request), proposal, tokens, rows, nodes, engine.token_text)
    appended = engine.scheduler.commit(grant, tokens, engine.detokenize)
    if not appended:
        return None
    request.logprobs += logprobs[:appended]
    request.details += details[:appended]
    accepted = min(len(tokens) - 1, appended)  # an end inside the block cuts what was accepted after it
    request.metrics.speculative_decoding.record(len(proposal), accepted, proposal.depth, proposal.note)
    if request.finished:
        engine.forget_drafts(request)
    elif len(proposal):
        engine.observe(request, len(proposal), accepted)
    if request.metrics.first_token_time is None:
        request.metrics.first_token_time = time.monotonic()
    return request, engine.piece(request, appended)


def _propose(engine: Engine, grants: Sequence[Grant]) -> dict[str, Proposal]:
    """Drafts for ``grants``. A drafter that fails, or breaks its contract, costs a request its drafts, nothing else."""
    drafter = engine.drafter
    if drafter is None or not grants:
        return {}
    batch = [
        DraftRequest(grant.request, grant.max_drafts, engine.noise(grant.request), engine.sampler(grant.request))
        for grant in grants
    ]
    try:
        proposals = drafter.propose(batch)
    except Exception:
        # One request may have broken the batch: begin anew, each alone, so that only that one goes without.
        logger.exception("drafter %s failed on a batch of %d", drafter.name, len(batch))
        for entry in batch:
            engine.forget_drafts(entry.request)
        proposals = [_propose_alone(engine, drafter, entry) for entry in batch]
    if len(proposals) != len(batch):
        problem = f"gave {len(proposals)} proposals for {len(batch)} requests"
        for entry in batch:
            engine.stop_drafting(entry.request, problem)
        return {}
    checked = {}
    for entry, proposal in zip(batch, proposals, strict=True):
        try:
            check_proposal(proposal, vocab_size=engine.vocab_size, max_tokens=entry.max_tokens)
            checked[entry.request.request_id] = _legal(proposal, entry)
        except ValueError as error:
            engine.stop_drafting(entry.request, str(error))
    return checked


def _undrafted(engine: Engine, grant: Grant) -> Proposal:
    """No drafts; where none were asked for, the note says why."""
    decodes = grant.request.num_output_tokens > 0 and grant.num_tokens == 1
    unasked = engine.drafter is not None and decodes and not grant.max_drafts
    why = engine.controller.why_none(grant.request) if unasked else ""
    return Proposal(note=ProposalNote(why=why)) if why else Proposal()


def _legal(proposal: Proposal, entry: DraftRequest) -> Proposal:
    """A chain of point masses without what the request's grammar would reject; drawn drafts must stay as they are.

    In a tree such a node is one that is never reached.
    """
    if proposal.probs is not None or proposal.parents is not None or not len(proposal):
        return proposal
    count = entry.sampler.num_legal(entry.request.token_ids, proposal.token_ids)
    if count == len(proposal):
        return proposal
    chances = None if proposal.chances is None else proposal.chances[:count]
    return replace(proposal, token_ids=proposal.token_ids[:count], chances=chances)


def _propose_alone(engine: Engine, drafter: Drafter, entry: DraftRequest) -> Proposal:
    try:
        (proposal,) = drafter.propose([entry])
    except Exception as error:
        engine.stop_drafting(entry.request, f"{type(error).__name__}: {error}")
        return Proposal()
    return proposal
