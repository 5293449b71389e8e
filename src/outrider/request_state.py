"""The one record of a request while the engine works on it: tokens and progress, sampler, noise and text."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.detokenizer import Detokenizer
from outrider.request import Request
from outrider.sampling.noise import Noise
from outrider.sampling.request_sampler import RequestSampler


@dataclass(eq=False, kw_only=True)
class RequestState(Request):
    """A request with what turns its logits into tokens and its tokens into text.

    ``sampler`` holds its parameters made ready, its history and its grammar. ``noise`` is all its randomness.
    """

    sampler: RequestSampler
    noise: Noise
    detokenizer: Detokenizer

    @property
    def follows_argmax(self) -> bool:
        """True if its next token is the argmax of the model's logits as they are."""
        return self.params.greedy and not self.sampler.edits

    def add_text(self, token_id: int) -> str | None:
        """Add a token to the text; return the stop string that it completes, if any."""
        return self.detokenizer.push(
            token_id,
            hidden=self.is_end_token(token_id),
            may_stop=self.num_output_tokens + 1 >= self.params.min_tokens,
        )
