"""What users pass to ``LLM`` as prompts, conversations and parameters, made lists of plain values.

Everything that is no prompt is refused with one line that names it. Knows nothing about models and tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, Protocol

from outrider.errors import InvalidRequestError, counted
from outrider.sampling_params import SamplingParams


class Array(Protocol):
    """A NumPy array, a torch tensor, or another one that can become a list."""

    def tolist(self) -> Any:
        """As nested lists of Python's own numbers."""
        ...


Prompt = str | Iterable[int] | Array | Mapping[str, Any]
"""Text; token ids as a list, a generator or a 1-D array; or a dict with ``prompt`` or ``prompt_token_ids``."""
Prompts = Prompt | Iterable[Prompt]
"""One prompt or any number of them; the rows of a 2-D array are prompts."""
Params = SamplingParams | Mapping[str, Any]
"""``SamplingParams``, or a dict of their fields."""
Message = Mapping[str, Any]
"""``{"role": …, "content": …}``"""

_FORMS = "a prompt is text, token ids, or a dict with prompt or prompt_token_ids"


class PlainPrompt(NamedTuple):
    """A prompt as text, token ids, or both, the ids then being what the text is taken to be."""

    text: str | None
    token_ids: list[int] | None


def plain_prompts(prompts: Prompts) -> list[PlainPrompt]:
    """Each prompt of ``prompts``, which may be one alone. Raises ``InvalidRequestError``."""
    if isinstance(prompts, str | Mapping):
        return [_one(prompts, "prompts")]
    items = _items(prompts, "prompts")
    are_ids = [_is_token_id(item) for item in items]
    if items and all(are_ids):
        return [PlainPrompt(None, _token_ids(items, "prompts"))]
    if any(are_ids):
        place = are_ids.index(False)
        raise _bad(
            f"prompts mix token ids with {_kind(items[place])}, prompts[{place}]; give one prompt or a list of them"
        )
    return [_one(item, f"prompts[{index}]") for index, item in enumerate(items)]


def plain_params(params: Params | Iterable[Params] | None, num_prompts: int) -> list[SamplingParams]:
    """The parameters of each prompt. Raises ``InvalidRequestError``."""
    if isinstance(params, str | SamplingParams | Mapping) or not isinstance(params, Iterable):
        return [_params(params, "sampling_params")] * num_prompts
    each = [_params(item, f"sampling_params[{index}]") for index, item in enumerate(params)]
    if len(each) != num_prompts:
        raise _bad(
            f"{len(each)} SamplingParams for {counted(num_prompts, 'prompt')}; give one for all or one for each",
            "sampling_params",
        )
    return each


def plain_conversations(messages: Iterable[Message] | Iterable[Iterable[Message]]) -> list[list[Message]]:
    """Each conversation of ``messages``, which may be one alone. Raises ``InvalidRequestError``."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise _bad(
            f"messages is {_kind(messages)}; give a list of messages, such as "
            f"[{{'role': 'user', 'content': 'Hello!'}}], or a list of such lists",
            "messages",
        )
    items: list[Any] = list(messages)
    if all(isinstance(item, Mapping) for item in items):
        return [items]
    conversations = []
    for index, item in enumerate(items):
        if isinstance(item, str | bytes | Mapping) or not isinstance(item, Iterable):
            raise _bad(
                f"messages[{index}] is {_kind(item)}; messages must be dicts with role and content, or lists of those",
                "messages",
            )
        conversations.append(list(item))
    return conversations


def _one(prompt: Any, name: str) -> PlainPrompt:
    if isinstance(prompt, str):
        return PlainPrompt(prompt, None)
    if not isinstance(prompt, Mapping):
        return PlainPrompt(None, _token_ids(_items(prompt, name), name))
    known = ("prompt", "prompt_token_ids")
    for key in prompt:
        if key not in known:
            raise _bad(f"{name} has an unknown key {key!r}; known are: {', '.join(known)}")
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and token_ids is None:
        raise _bad(f"{name} has neither prompt nor prompt_token_ids; give one of them")
    if text is not None and not isinstance(text, str):
        raise _bad(f"{name}['prompt'] is {_kind(text)}, not text; token ids go into prompt_token_ids")
    if token_ids is None:
        return PlainPrompt(text, None)
    name = f"{name}['prompt_token_ids']"
    if isinstance(token_ids, str | Mapping):
        raise _bad(f"{name} is {_kind(token_ids)}, not a list of token ids")
    return PlainPrompt(text, _token_ids(_items(token_ids, name), name))


def _items(value: Any, name: str) -> list[Any]:
    """What ``value`` holds, in order; an iterator is used up."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise _bad(f"{name} is {_kind(value)}, not text; decode it first, as in text = data.decode('utf-8')")
    if isinstance(value, set | frozenset):
        raise _bad(f"{name} is a set, which has no order; give a list")
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, str) or not isinstance(plain, Iterable):
        raise _bad(f"{name} is {_kind(value)}; {_FORMS}")
    return list(plain)


def _token_ids(items: Sequence[Any], name: str) -> list[int]:
    for place, item in enumerate(items):
        if not _is_token_id(item):
            raise _bad(f"{name}[{place}] is {_kind(item)}, not a token id; {_FORMS}")
    return [int(item) for item in items]


def _is_token_id(value: Any) -> bool:
    """True for Python's and NumPy's integers and for arrays and tensors that are a single one; not for ``True``."""
    if isinstance(value, Integral):
        return not isinstance(value, bool)
    if isinstance(value, str | bytes) or getattr(value, "shape", None) != ():
        return False
    return hasattr(value, "tolist") and _is_token_id(value.tolist())


def _params(params: Any, name: str) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if isinstance(params, SamplingParams):
        return params
    if not isinstance(params, Mapping):
        raise _bad(
            f"{name} is {_kind(params)}; give SamplingParams, a dict of their fields, or a list with one for each "
            f"prompt",
            "sampling_params",
        )
    for key in params:
        if not isinstance(key, str):
            raise _bad(f"{name} has the key {key!r}; keys are names of sampling parameters", "sampling_params")
    return SamplingParams(**params)


def _kind(value: object) -> str:
    """``a dict``, ``an int``, ``None``: for messages, which must stay on one short line."""
    if value is None or isinstance(value, bool):
        return repr(value)
    name = type(value).__name__
    return name if name == "bytes" else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _bad(message: str, param: str = "prompt") -> InvalidRequestError:
    return InvalidRequestError(message, param=param)
