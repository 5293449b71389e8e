"""How one request's chain of drafts grows, token by token. Knows a draft model's rows, not the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from outrider.drafters.base import DraftRequest, Proposal
from outrider.drafters.draft_rows import DraftRows
from outrider.models.logits import Logits
from outrider.runner.model_runner import Chunk
from outrider.sampling.noise import Purpose, Weights

LookUp = Callable[[Sequence[int], int], Sequence[int]]
"""``look_up(tokens, most)``: at most so many tokens that may follow the request's text and these drafts."""


@dataclass
class DraftChain:
    """The chain of ``entry``'s request, whose context is ``context_len`` of the draft model's tokens long.

    With ``look_up`` a pass reads, after the last draft, tokens that may be the next ones. Each row is drawn from as if
    the token before it had been fed alone; at the first that is another than was read the pass ends. So the chain is
    the same, and takes fewer passes.
    """

    entry: DraftRequest
    rows: DraftRows
    point_mass: bool
    context_len: int
    token_ids: list[int] = field(default_factory=list)
    probs: list[Weights] = field(default_factory=list)
    look_up: LookUp | None = None
    guesses: tuple[int, ...] = ()
    """What the next pass reads after the last draft."""
    stuck: bool = False
    """The draft knows no token of those that are allowed here, or would say one that the target does not have."""

    @property
    def request_id(self) -> str:
        """Whose chain it is."""
        return self.entry.request.request_id

    @property
    def done(self) -> bool:
        """Nothing more is to be fed."""
        return self.stuck or len(self.token_ids) >= self.entry.max_tokens

    @property
    def num_places(self) -> int:
        """Places for the context, all drafts so far, and what is read after them."""
        return self.context_len + len(self.token_ids) + len(self.guesses)

    @property
    def draft_ids(self) -> list[int]:
        """The chain in the draft model's own tokens."""
        return [self.rows.draft_id(token_id) for token_id in self.token_ids]

    def shrink(self) -> None:
        """Read no guesses; without any, grow no further: the cache has no room."""
        self.stuck = not self.guesses
        self.guesses = ()

    def chunk(self) -> Chunk:
        """The last draft, and what may follow it."""
        read = [self.rows.draft_id(token_id) for token_id in (self.token_ids[-1], *self.guesses)]
        start = self.context_len + len(self.token_ids) - 1
        return Chunk(self.request_id, read, start, num_logits=len(read))

    def extend(self, logits: Logits) -> None:
        """Tokens from ``logits`` [1 + guesses, draft vocab]: one more than there are guesses that came true."""
        guesses, self.guesses = self.guesses, ()
        for row in range(len(logits)):
            self._append(logits, row)
            if self.done or row == len(guesses) or self.token_ids[-1] != guesses[row]:
                break
        left = self.entry.max_tokens - len(self.token_ids) - 1  # the last draft is not fed
        if self.look_up is not None and not self.stuck and left > 0:
            found = self.look_up(self.token_ids, left)
            self.guesses = tuple(takewhile(self.rows.__contains__, found))

    def _append(self, logits: Logits, row: int) -> None:
        """One token more from a row of ``logits``."""
        entry, request = self.entry, self.entry.request
        # Settled before anything is drawn here, so that ending the chain does not depend on what would be drawn.
        self.stuck = self.rows.leaves(logits, row)
        if self.stuck:
            return
        if request.params.greedy:
            token_id = self.rows.greedy(entry, logits, row, self.token_ids)
            self.stuck = token_id is None
            if token_id is not None:
                self.token_ids.append(token_id)
            return
        probs = self.rows.probs(entry, logits, row, self.token_ids)
        self.stuck = probs is None
        if probs is None:
            return
        position = request.num_tokens + len(self.token_ids)
        purpose = Purpose.TARGET if self.point_mass else Purpose.DRAFT
        self.token_ids.append(entry.noise.draw(probs, position, purpose))
        if not self.point_mass:
            self.probs.append(probs)

    def proposal(self) -> Proposal:
        """The chain as it is."""
        return Proposal(tuple(self.token_ids), None if self.point_mass else tuple(self.probs))
