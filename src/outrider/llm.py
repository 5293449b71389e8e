"""The offline face of the engine: prompts in, texts out, from any number of threads."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

from outrider.config import EngineConfig, SpeculativeConfig
from outrider.engine.memory import MemoryPlan
from outrider.engine.parallel_sampling import joined, one_each
from outrider.engine.setup import ReadyEngine, build_engine
from outrider.engine.shared_engine import Job, SharedEngine
from outrider.errors import InvalidRequestError
from outrider.outputs import RequestOutput, SpeculationStatus, StreamPiece
from outrider.prompts import (
    Message,
    Params,
    PlainPrompt,
    Prompt,
    Prompts,
    plain_conversations,
    plain_params,
    plain_prompts,
)


class LLM:
    """A model ready to generate.

    ``model`` is an alias such as ``smollm2-135m-instruct``, a ``.gguf`` file, a Hugging Face folder or a hub id.
    ``speculative_config`` is ``"auto"``, a method's name, a dict of ``SpeculativeConfig`` keys, or None for none;
    further settings are those of ``EngineConfig``. Raises ``UserError`` for anything that does not fit.

    Any number of threads may use it at a time; their requests then share batches. Ctrl-C ends the call that it
    interrupts, after the step at hand, and leaves the others.
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
        self._shared = SharedEngine(self.engine)

    @property
    def memory(self) -> MemoryPlan:
        """What weights take, and what the KV caches may take."""
        return self._ready.memory

    @property
    def speculation(self) -> SpeculationStatus:
        """Which drafter is at work, or why none is."""
        return self.engine.speculation

    def generate(
        self, prompts: Prompts, sampling_params: Params | Iterable[Params] | None = None
    ) -> list[RequestOutput]:
        """Generate for all prompts in one batch; outputs in the prompts' order.

        A prompt is text, token ids (a list, a generator, an array), or a dict with ``prompt`` or ``prompt_token_ids``;
        ``prompts`` is one or any number of them. Parameters may be a dict, and may be given for each prompt. With ``n``
        above 1 an output holds that many answers, and the metrics of all of them together.

        A request that fails while running has ``finish_reason="error"`` and ``error`` set; the others are not
        affected. Raises ``InvalidRequestError``, before anything runs, if a prompt does not fit.
        """
        many = plain_prompts(prompts)
        params = plain_params(sampling_params, len(many))
        jobs: list[Job] = []
        for index, (prompt, each) in enumerate(zip(many, params, strict=True)):
            try:
                token_ids = self._encode(prompt)
            except InvalidRequestError as error:
                if len(many) == 1:
                    raise
                raise InvalidRequestError(f"prompts[{index}]: {error}", param=error.param) from None
            jobs += [Job(token_ids, single, prompt.text) for single in one_each(each)]
        answers = iter(self._shared.generate(jobs))
        outputs = []
        for each in params:
            taken = [next(answers) for _ in range(each.n)]
            outputs.append(taken[0] if each.n == 1 else joined(taken))
        return outputs

    def chat(
        self,
        messages: Iterable[Message] | Iterable[Iterable[Message]],
        sampling_params: Params | Iterable[Params] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several in one batch, through the model's own chat template."""
        return self.generate([self.chat_prompt(each) for each in plain_conversations(messages)], sampling_params)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to where the model's answer begins."""
        return self.tokenizer.encode(self.tokenizer.apply_chat_template(messages), add_special_tokens=False)

    def stream(self, prompt: Prompt, sampling_params: Params | None = None) -> Generator[StreamPiece, None, None]:
        """Yield what each step adds to one prompt's answer; the last piece has the whole ``output``.

        Several streams may be read in turn, and in several threads. A prompt that does not fit is refused here, before
        the first piece is asked for. Closing the iterator ends the request. Raises ``RequestFailedError`` if the
        request fails on the way.
        """
        many = plain_prompts(prompt)
        if len(many) != 1:
            raise InvalidRequestError(
                f"a stream has one prompt, but {len(many)} were given; open one stream for each, or use generate",
                param="prompt",
            )
        (params,) = plain_params(sampling_params, 1)
        if params.n != 1:
            raise InvalidRequestError(
                f"n={params.n}, but a stream has one answer; open one stream for each, or use generate", param="n"
            )
        return self._shared.stream(Job(self._encode(many[0]), params, many[0].text))

    def _encode(self, prompt: PlainPrompt) -> Sequence[int]:
        """Token ids of a prompt. Raises ``InvalidRequestError`` if the engine can not serve them."""
        token_ids = prompt.token_ids
        if token_ids is None:
            token_ids = self.tokenizer.encode(prompt.text or "")
        self.engine.check_prompt(token_ids)
        return token_ids
