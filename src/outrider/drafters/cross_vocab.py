"""A draft model with another tokenizer: it reads the text in its own tokens and its drafts become the target's.

Both algorithms are those of Timor et al. 2025 (arXiv 2502.05202). *Token-level intersection* (tli) lets the draft
choose only among tokens that both vocabularies have, so a draft has its true distribution over the target's tokens and
is verified like any other. *String-level exact match* (slem) lets it say what it likes, greedily, and takes the
target's tokens for that text as point masses; it needs no shared tokens at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from outrider.config import CrossVocabAlgorithm
from outrider.drafters.base import DrafterDefaults, DraftRequest, Proposal
from outrider.drafters.draft_chain import DraftChain
from outrider.drafters.draft_model import is_point_mass
from outrider.drafters.draft_passes import DraftPasses
from outrider.drafters.draft_rows import DraftRows, first_choice
from outrider.errors import VocabularyMismatchError
from outrider.models.logits import Logits
from outrider.models.retokenizer import Retokenizer
from outrider.models.vocabulary import SharedTokens, Vocabulary, shared_tokens
from outrider.request import Request
from outrider.runner.model_runner import Chunk, ModelRunner
from outrider.verification.registry import Coupling

ENOUGH_SHARED = 0.5
"""With ``auto``, of ``SharedTokens.share`` so much must be shared for sampled requests to be drafted for by tli."""


class CrossVocabDrafter(DrafterDefaults):
    """Drafts with a model whose vocabulary is not the target's.

    The committed tokens are said in the draft's own tokens, from the text; what of that is as it was needs no computing
    again, drafts that came true among it. With slem every request gets point masses; with tli greedy and ``coupled``
    ones do, and others a sample with its distribution. ``auto`` takes slem for greedy requests, where saying what it
    likes can only help, and tli for the others, for which a sample with its distribution is accepted more often than
    the most probable token; unless too little is shared.

    With tli drafting ends where the draft would say a token that the target does not have. Where a committed text
    cannot be said in the draft's tokens nothing is drafted.
    """

    name = "cross_vocab"

    def __init__(
        self,
        runner: ModelRunner,
        *,
        own: Vocabulary,
        target: Vocabulary,
        target_vocab_size: int,
        max_num_batched_tokens: int,
        algorithm: CrossVocabAlgorithm = "auto",
        coupled: Coupling = "seeded",
        token_ids: Sequence[int] | None = None,
    ) -> None:
        """``own`` and ``target`` are the vocabularies of draft and target, without tokens that have no rows.

        ``token_ids``, ascending, are the draft's tokens that the rows of a trimmed output stand for; without, row i is
        token i. Raises ``VocabularyMismatchError`` for tli where nothing is shared.
        """
        self.shared = shared_tokens(own, target)
        self._algorithm = algorithm
        if algorithm == "tli" and self.shared.num_ordinary == 0:
            raise VocabularyMismatchError(
                f"cross_vocab_algorithm='tli' needs tokens that both vocabularies have, but they share 0 of the "
                f"draft's {self.shared.num_draft}; use 'slem' or 'auto'"
            )
        output_ids = None if token_ids is None else np.asarray(token_ids, dtype=np.int64)
        controls = {own_id: token_id for token_id, own_id in self.shared.images.items()}
        self._texts = _Texts(own, target, controls, output_ids)
        self._rows = _shared_rows(self.shared, output_ids, target_vocab_size)
        self._passes = DraftPasses(runner, max_num_batched_tokens)
        self._coupled = coupled
        self._contexts: dict[str, _Context] = {}

    def propose(self, batch: Sequence[DraftRequest]) -> list[Proposal]:
        """Proposals of at most ``max_tokens`` tokens."""
        proposals = {entry.request.request_id: Proposal() for entry in batch}
        begun = [pair for entry in batch if (pair := self._begin(entry)) is not None]
        drafts = [draft for draft, _ in begun]
        self._passes.grow(drafts, [missing for _, missing in begun])
        for draft in drafts:
            context = self._contexts[draft.request_id]
            context.fed(draft.draft_ids[:-1])  # the last need not have been fed
            shared = self._passes.publish(draft.request_id, context.token_ids, context.num_settled)
            context.num_shared = max(context.num_shared, shared)
            proposals[draft.request_id] = draft.proposal()
        return list(proposals.values())

    def observe(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Nothing to do: the next proposal finds in the request's tokens what came true."""

    def forget(self, request_id: str) -> None:
        """Drop the request's text and give its blocks back."""
        self._contexts.pop(request_id, None)
        self._passes.free(request_id)

    def num_uncomputed_tokens(self, request: Request) -> int:
        """About how many tokens of the request's text have no K/V here yet, by the target's count."""
        context = self._contexts.get(request.request_id)
        return max(1, request.num_tokens - (0 if context is None else context.num_cached))

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless the draft's blocks add up."""
        self._passes.check_integrity()

    def _by_text(self, request: Request) -> bool:
        if self._algorithm != "auto":
            return self._algorithm == "slem"
        return request.params.greedy or self.shared.num_ordinary == 0 or self.shared.share < ENOUGH_SHARED

    def _begin(self, entry: DraftRequest) -> tuple[DraftChain | _TextChain, list[int]] | None:
        """A draft to be grown, and the tokens of its context that are to be fed; None if there is nothing to draft."""
        request_id, by_text = entry.request.request_id, self._by_text(entry.request)
        context = self._contexts.get(request_id)
        if context is None:
            context = _Context(Retokenizer(self._texts.target, self._texts.own, self.shared.images))
            self._contexts[request_id] = context
        context.read(entry.request.token_ids)
        if context.num_cached < context.num_shared:
            self._passes.free(request_id)  # others may read what is to be written anew
            context.restart()
        if not context.begun:
            context.begin(self._passes.begin(request_id, context.token_ids))
        missing = context.missing()
        if not missing:
            return None
        computed = context.num_cached
        length = computed + len(missing)
        self._passes.keep(request_id, computed)
        lookahead = 1 if by_text else 0
        room = self._passes.max_model_len - length
        wanted = min(entry.max_tokens, room + 1 - lookahead)  # the last draft is not fed, so it needs no place
        if wanted < 1 or not self._passes.reserve(request_id, length + wanted - 1 + lookahead):
            return None
        entry = replace(entry, max_tokens=wanted)
        if by_text:
            return _TextChain(entry, self._texts, length, in_character=context.in_character), missing
        return DraftChain(entry, self._rows, is_point_mass(entry, self._coupled), length), missing


def _shared_rows(shared: SharedTokens, output_ids: NDArray[np.int64] | None, target_vocab_size: int) -> DraftRows:
    draft_ids, token_ids, entries = shared.draft_ids, shared.target_ids, shared.draft_ids
    if output_ids is not None:
        here = np.isin(draft_ids, output_ids)
        draft_ids, token_ids = draft_ids[here], token_ids[here]
        entries = np.searchsorted(output_ids, draft_ids)
    return DraftRows(token_ids, target_vocab_size, entries=entries, draft_ids=draft_ids)


class _Context:
    """A request's committed text in the draft's tokens, and how much of it the draft's cache holds."""

    def __init__(self, text: Retokenizer) -> None:
        self._text = text
        self._num_ids = 0
        self._beyond: list[int] = []
        """The cache holds the first ``_num_ids`` tokens of the text's whole characters, then these."""
        self.begun = False
        self.num_shared = 0
        """Tokens at the beginning whose places in the cache others may read."""

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the text's whole characters, to be read only; none if the text cannot be said."""
        said = self._text.tokens()
        return [] if said is None else said[0]

    @property
    def num_settled(self) -> int:
        """Tokens at the beginning that hardly ever change."""
        return self._text.num_settled

    @property
    def num_cached(self) -> int:
        """Tokens of the context that the cache holds."""
        return self._num_ids + len(self._beyond)

    @property
    def in_character(self) -> bool:
        """True if the text ends inside a character."""
        return self._text.in_character

    def begin(self, num_cached: int) -> None:
        """The cache holds so many tokens of the text from the start."""
        self.begun, self._num_ids = True, num_cached

    def restart(self) -> None:
        """The cache holds nothing any more."""
        self.begun, self._num_ids, self._beyond, self.num_shared = False, 0, [], 0

    def read(self, token_ids: Sequence[int]) -> None:
        """Read on in the committed ``token_ids``; ``num_cached`` is then what the cache holds of the text as it is."""
        kept = self._text.update(token_ids)
        if kept < self._num_ids:
            self._num_ids, self._beyond = kept, []
        said = self._text.tokens()
        if said is None or not any(said):
            return
        ids, rest = said
        same = 0
        for token_id, cached in zip([*ids[self._num_ids :], *rest], self._beyond, strict=False):
            if token_id != cached:
                break
            same += 1
        cached_len = min(self._num_ids + same, len(ids) + len(rest) - 1)  # logits after the last token are wanted
        self._num_ids, self._beyond = min(cached_len, len(ids)), rest[: max(cached_len - len(ids), 0)]

    def missing(self) -> list[int]:
        """The tokens of the text after those in the cache, at least one; none if there is nothing to draft from."""
        said = self._text.tokens()
        return [] if said is None else said[0][self._num_ids :] + said[1][len(self._beyond) :]

    def fed(self, draft_ids: Sequence[int]) -> None:
        """What is ``missing`` has been fed, and then these drafts."""
        ids, rest = self._text.tokens() or ([], [])
        self._num_ids, self._beyond = len(ids), [*rest, *draft_ids]


@dataclass(frozen=True)
class _Texts:
    """Text of draft tokens in the target's. ``controls`` maps control tokens, ``output_ids`` names the draft's rows."""

    own: Vocabulary
    target: Vocabulary
    controls: dict[int, int]
    output_ids: NDArray[np.int64] | None

    def argmax(self, logits: Logits) -> int:
        """The most probable draft token of ``logits`` [1, draft rows]."""
        entry = first_choice(logits, 0)
        return entry if self.output_ids is None else int(self.output_ids[entry])

    def in_target_tokens(self, text: bytes, *, in_character: bool) -> list[int]:
        """The target's tokens for ``text``, up to bytes that form no character or a token that the model does not have.

        ``in_character`` says that the text before ends inside one: the bytes that complete it are tokens by themselves.
        """
        first = 0
        while in_character and first < len(text) and text[first] & 0xC0 == 0x80:
            first += 1
        try:
            whole = text[first:].decode()
        except UnicodeDecodeError as error:
            whole = text[first : first + error.start].decode()
        head = (self.target.by_bytes.get(text[place : place + 1], -1) for place in range(first))
        tokens = (*head, *self.target.encode(whole, control=True))
        return list(takewhile(lambda token_id: token_id in self.target, tokens))


@dataclass
class _TextChain:
    """One request's drafted text while it grows by the draft's most probable tokens (slem).

    The last of the target's tokens for it is left out, since what would come next may change it; so the draft says one
    token more than is wanted. Where the draft says a control token that the target has, nothing is left out.
    """

    entry: DraftRequest
    texts: _Texts
    context_len: int
    in_character: bool
    draft_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    done: bool = False
    text: bytes = b""

    @property
    def request_id(self) -> str:
        """Whose text it is."""
        return self.entry.request.request_id

    @property
    def num_places(self) -> int:
        """Places for the context and all that was drafted."""
        return self.context_len + len(self.draft_ids)

    def shrink(self) -> None:
        """Grow no further, because the cache has no room."""
        self.done = True

    def chunk(self) -> Chunk:
        """The last draft."""
        return Chunk(self.request_id, self.draft_ids[-1:], self.num_places - 1, num_logits=1)

    def extend(self, logits: Logits) -> None:
        """One draft token more from ``logits`` [1, draft rows]."""
        draft_id, wanted = self.texts.argmax(logits), self.entry.max_tokens
        said = self.texts.own.bytes_of(draft_id)
        if said is None:
            control = self.texts.controls.get(draft_id)
            if control is not None:
                whole = self.texts.in_target_tokens(self.text, in_character=self.in_character)
                self.token_ids = [*whole, control]
            self.done = True
            return
        self.draft_ids.append(draft_id)
        self.text += said
        self.token_ids = self.texts.in_target_tokens(self.text, in_character=self.in_character)[:-1]
        self.done = len(self.token_ids) >= wanted or len(self.draft_ids) > wanted

    def proposal(self) -> Proposal:
        """The target's tokens for the text."""
        return Proposal(tuple(self.token_ids[: self.entry.max_tokens]))
