"""The offline face of the engine: prompts in, texts out."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.engine.memory import MemoryPlan
from outrider.engine.parallel_sampling import joined, one_each
from outrider.engine.setup import ReadyEngine, build_engine
from outrider.errors import InvalidRequestError, RequestFailedError
from outrider.outputs import RequestOutput, SpeculationStatus, StreamPiece
from outrider.request import Request
from outrider.sampling_params import SamplingParams

Prompt = str | Sequence[int]
"""Text, or token ids."""
Message = Mapping[str, Any]
"""``{"role": …, "content": …}``"""


class LLM:
    """A model ready to generate.

    ``model`` is an alias such as ``smollm2-135m-instruct``, a ``.gguf`` file, a Hugging Face folder or a hub id.
    ``speculative_config`` is ``"auto"``, a method's name, a dict of ``SpeculativeConfig`` keys, or None for none;
    further settings are those of ``EngineConfig``. Raises ``UserError`` for anything that does not fit.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: SpeculativeConfig | dict[str, Any] | str | None = "auto",
        **settings: Any,
    ) -> None:
        speculative = SpeculativeConfig.parse(speculative_config)
        self._ready: ReadyEngine = build_engine(EngineConfig(model=str(model), speculative=speculative, **settings))
        self.engine = self._ready.engine
        self.tokenizer = self._ready.tokenizer
        self._ids = itertools.count()
        self._streams: dict[str, deque[StreamPiece]] = {}

    @property
    def memory(self) -> MemoryPlan:
        """What weights take, and what the KV caches may take."""
        return self._ready.memory

    @property
    def speculation(self) -> SpeculationStatus:
        """Which drafter is at work, or why none is."""
        return self.engine.speculation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts in one batch; outputs in the prompts' order.

        With ``n`` above 1 an output holds that many answers, and the metrics of all of them together.

        A request that fails while running has ``finish_reason="error"`` and ``error`` set; the others are not
        affected. Raises ``InvalidRequestError``, before anything runs, if a prompt does not fit.
        """
        many = self._as_list(prompts)
        params = self._params_for(many, sampling_params)
        requests: list[Request] = []
        try:
            for prompt, each in zip(many, params, strict=True):
                token_ids = self._encode(prompt)
                for single in one_each(each):
                    requests.append(self._add(token_ids, single))
            while not all(request.finished for request in requests):
                self._step()
        except BaseException:
            for request in requests:
                self._discard(request)
            raise
        answers = iter(requests)
        outputs = []
        for prompt, each in zip(many, params, strict=True):
            text = prompt if isinstance(prompt, str) else None
            taken = [self.engine.take_output(next(answers).request_id, text) for _ in range(each.n)]
            outputs.append(taken[0] if each.n == 1 else joined(taken))
        return outputs

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several in one batch, through the model's own chat template."""
        single = not messages or isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        return self.generate([self.chat_prompt(each) for each in conversations], sampling_params)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to where the model's answer begins."""
        return self.tokenizer.encode(self.tokenizer.apply_chat_template(messages), add_special_tokens=False)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[StreamPiece]:
        """Yield what each step adds to one prompt's answer; several streams may be read in turn.

        A prompt that does not fit is refused here, before the first piece is asked for. Closing the iterator ends
        the request. Raises ``RequestFailedError`` if the request fails on the way.
        """
        token_ids, params = self._encode(prompt), sampling_params or SamplingParams()
        if params.n != 1:
            raise InvalidRequestError(
                f"n={params.n}, but a stream has one answer; open one stream for each, or use generate", param="n"
            )
        self.engine.check_prompt(token_ids)
        return self._pieces(token_ids, params)

    def _pieces(self, token_ids: Sequence[int], params: SamplingParams) -> Iterator[StreamPiece]:
        request = self._add(token_ids, params)
        pending = self._streams[request.request_id] = deque[StreamPiece]()
        try:
            while pending or not request.finished:
                if pending:
                    yield pending.popleft()
                    continue
                self._step()
        finally:
            del self._streams[request.request_id]
            self._discard(request)
        if request.error is not None:
            raise RequestFailedError(request.error)

    def _step(self) -> None:
        """One step of the engine; what it adds to open streams waits there to be read."""
        for request, piece in self.engine.step():
            if request.request_id in self._streams:
                self._streams[request.request_id].append(piece)

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _add(self, token_ids: Sequence[int], params: SamplingParams) -> Request:
        return self.engine.add_request(f"request-{next(self._ids)}", token_ids, params)

    def _discard(self, request: Request) -> None:
        self.engine.abort(request.request_id)
        self.engine.take_output(request.request_id)

    @staticmethod
    def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
        if isinstance(prompts, str):
            return [prompts]
        token_ids = [item for item in prompts if isinstance(item, int)]
        many = [item for item in prompts if not isinstance(item, int)]
        if token_ids and many:
            raise InvalidRequestError("prompts mix token ids with texts or lists; give one prompt or a list of them")
        return [token_ids] if token_ids else many

    @staticmethod
    def _params_for(
        prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise InvalidRequestError(
                f"{len(params)} sampling parameters for {len(prompts)} prompts; give one for all or one for each",
                param="sampling_params",
            )
        return params
