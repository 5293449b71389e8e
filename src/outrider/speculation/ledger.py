"""How much time drafting with a model may lose before it is held back, and when it is tried again. No clock."""

from __future__ import annotations

EXPLORATION_SHARE = 0.02
"""Share of the elapsed time that drafting with a model may lose in all, by observed times."""
_MOST_STEPS = 3
"""The most that it may lose at once, in steps of plain decoding. It starts with this much."""
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 1024
"""Steps from one probe of a drafter that does not pay to the next. The pause doubles after each probe."""


class ExplorationBudget:
    """Seconds that drafting with a model may still lose.

    The budget grows by ``EXPLORATION_SHARE`` of the elapsed time, and by what drafting saves. It falls by what drafting
    costs. It never exceeds a few plain steps, so that an earlier success does not pay for a long failure. Prefilling
    the draft model for a request pays off over many steps. Its time is kept apart as outstanding and later savings
    cover it first.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        """None before the first step."""
        self.outstanding_prefill = 0.0
        """Seconds of prefills of the draft model that savings have not covered yet."""

    def allows(self, loss: float) -> bool:
        """True if ``loss`` seconds may be lost now."""
        return self.seconds is None or self.seconds > loss

    def allows_prefill(self, plain_seconds: float) -> bool:
        """True while the outstanding prefills are within a few plain steps of ``plain_seconds``."""
        return self.outstanding_prefill <= _MOST_STEPS * plain_seconds

    def settle(self, plain_seconds: float, step_seconds: float, saved_seconds: float, prefill_seconds: float) -> None:
        """Enter a step of ``step_seconds`` that would have taken ``plain_seconds`` without drafts.

        ``saved_seconds`` is the time that the model's drafts saved in it, negative for a loss, without the
        ``prefill_seconds`` that it spent on later steps.
        """
        change = EXPLORATION_SHARE * step_seconds + saved_seconds
        self.outstanding_prefill += prefill_seconds
        covered = min(max(change, 0.0), self.outstanding_prefill)
        self.outstanding_prefill -= covered
        most = _MOST_STEPS * plain_seconds
        self.seconds = most if self.seconds is None else min(self.seconds + change - covered, most)


class ProbeSchedule:
    """When a model that does not pay is tried again: after 16 steps, then after twice as many each time."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._steps = 0

    @property
    def due(self) -> bool:
        """True if it is time for a probe."""
        return self._steps >= self._pause

    def count_step(self, *, modelled: bool) -> None:
        """A step ended; ``modelled`` if the model drafted by choice and not as a probe."""
        self._steps = 0 if modelled else self._steps + 1

    def probed(self) -> None:
        """A probe was made: the next one comes after twice the pause."""
        self._steps = 0
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def postpone(self) -> None:
        """No request was fit for a probe: ask again soon, since requests come and go."""
        self._steps = self._pause - _FIRST_PAUSE // 2

    def succeeded(self) -> None:
        """The model's drafts paid, or were all accepted: probe again soon if they stop."""
        self._pause = _FIRST_PAUSE
