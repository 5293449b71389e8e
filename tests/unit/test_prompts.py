"""Prompts, parameters and conversations in every form that people have them; all else is refused on one line."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from outrider.errors import InvalidRequestError
from outrider.prompts import PlainPrompt, plain_conversations, plain_params, plain_prompts
from outrider.sampling_params import SamplingParams


def text(value: str) -> PlainPrompt:
    return PlainPrompt(value, None)


def ids(*token_ids: int) -> PlainPrompt:
    return PlainPrompt(None, list(token_ids))


def generator(*items: Any) -> Iterator[Any]:
    yield from items


PROMPTS: dict[str, tuple[Callable[[], Any], list[PlainPrompt]]] = {
    "a text": (lambda: "one", [text("one")]),
    "an empty text": (lambda: "", [text("")]),
    "a list of texts": (lambda: ["one", "two"], [text("one"), text("two")]),
    "a tuple of texts": (lambda: ("one", "two"), [text("one"), text("two")]),
    "a generator of texts": (lambda: generator("one", "two"), [text("one"), text("two")]),
    "a map": (lambda: map(str.upper, ["one"]), [text("ONE")]),
    "values of a dict": (lambda: {"a": "one"}.values(), [text("one")]),
    "keys of a dict": (lambda: {"one": 1}.keys(), [text("one")]),
    "a deque": (lambda: deque(["one"]), [text("one")]),
    "an array of texts": (lambda: np.array(["one", "two"]), [text("one"), text("two")]),
    "ids": (lambda: [1, 2, 3], [ids(1, 2, 3)]),
    "one id": (lambda: [7], [ids(7)]),
    "a range": (lambda: range(3), [ids(0, 1, 2)]),
    "a generator of ids": (lambda: generator(1, 2), [ids(1, 2)]),
    "NumPy's integers": (lambda: [np.int64(1), np.uint8(2)], [ids(1, 2)]),
    "an array of ids": (lambda: np.array([1, 2], dtype=np.int32), [ids(1, 2)]),
    "an array of one id": (lambda: np.array([1]), [ids(1)]),
    "rows of ids": (lambda: np.array([[1, 2], [3, 4]]), [ids(1, 2), ids(3, 4)]),
    "a tensor": (lambda: torch.tensor([1, 2]), [ids(1, 2)]),
    "rows of a tensor": (lambda: torch.tensor([[1, 2]]), [ids(1, 2)]),
    "tensors of one id": (lambda: [torch.tensor(1), np.array(2)], [ids(1, 2)]),
    "an array of the standard library": (lambda: array("i", [1, 2]), [ids(1, 2)]),
    "lists of ids": (lambda: [[1, 2], (3,)], [ids(1, 2), ids(3)]),
    "generators of ids": (lambda: generator(generator(1, 2), range(2)), [ids(1, 2), ids(0, 1)]),
    "arrays of ids": (lambda: [np.array([1, 2]), torch.tensor([3])], [ids(1, 2), ids(3)]),
    "an empty list of ids": (lambda: [[1], []], [ids(1), ids()]),
    "texts and ids": (lambda: ["one", [2, 3], np.array([4])], [text("one"), ids(2, 3), ids(4)]),
    "a dict with a text": (lambda: {"prompt": "one"}, [text("one")]),
    "a dict with ids": (lambda: {"prompt_token_ids": np.array([1, 2])}, [ids(1, 2)]),
    "a dict with both": (lambda: {"prompt": "one", "prompt_token_ids": [1]}, [PlainPrompt("one", [1])]),
    "dicts": (lambda: [{"prompt": "one"}, {"prompt_token_ids": [1]}, "two"], [text("one"), ids(1), text("two")]),
    "nothing": (lambda: [], []),
    "an empty generator": (lambda: generator(), []),
    "an empty array": (lambda: np.array([]), []),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_in_every_form(name: str) -> None:
    make, expected = PROMPTS[name]
    found = plain_prompts(make())
    assert found == expected
    assert all(type(token) is int for prompt in found for token in prompt.token_ids or ())


BAD_PROMPTS: list[tuple[Any, str]] = [
    (b"bytes", "prompts is bytes, not text; decode it first"),
    (bytearray(b"x"), "prompts is a bytearray, not text; decode"),
    (memoryview(b"x"), "prompts is a memoryview, not text; decode"),
    (["one", b"two"], "prompts[1] is bytes, not text; decode it first"),
    (None, "prompts is None; a prompt is text, token ids, or a dict"),
    (5, "prompts is an int; a prompt is text, token ids, or a dict"),
    (2.5, "prompts is a float"),
    (True, "prompts is True"),
    (np.array(5), "prompts is a ndarray"),
    ([None], "prompts[0] is None; a prompt is text, token ids, or a dict"),
    ([True, False], "prompts[0] is True"),
    ([[1, True]], "prompts[0][1] is True, not a token id"),
    (np.array([True]), "prompts[0] is True"),
    ([1.0, 2.0], "prompts[0] is a float"),
    (np.array([[1.0]]), "prompts[0][0] is a float, not a token id"),
    ([1, "two"], "prompts mix token ids with a str, prompts[1]; give one prompt or a list of them"),
    (["one", 2], "prompts mix token ids with a str, prompts[0]"),
    ([1, True], "prompts mix token ids with True, prompts[1]"),
    ([1, [2]], "prompts mix token ids with a list, prompts[1]"),
    ([[1, "two"]], "prompts[0][1] is a str, not a token id"),
    ([[[1]]], "prompts[0][0] is a list, not a token id"),
    ([["one"]], "prompts[0][0] is a str, not a token id; a prompt is text"),
    ({"one", "two"}, "prompts is a set, which has no order; give a list"),
    ({"prompts": "one"}, "prompts has an unknown key 'prompts'; known are: prompt, prompt_token_ids"),
    ([{"prompt": "one", "multi_modal_data": {}}], "prompts[0] has an unknown key 'multi_modal_data'"),
    ({}, "prompts has neither prompt nor prompt_token_ids"),
    ({"prompt": [1]}, "prompts['prompt'] is a list, not text; token ids go into prompt_token_ids"),
    ({"prompt_token_ids": "one"}, "prompts['prompt_token_ids'] is a str, not a list of token ids"),
    ({"prompt_token_ids": [1, "x"]}, "prompts['prompt_token_ids'][1] is a str, not a token id"),
    ({"prompt_token_ids": 5}, "prompts['prompt_token_ids'] is an int"),
]


@pytest.mark.parametrize(("prompts", "words"), BAD_PROMPTS, ids=lambda value: repr(value)[:40])
def test_what_is_no_prompt_is_refused_on_one_line(prompts: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plain_prompts(prompts)
    assert str(caught.value).startswith(words), caught.value
    assert "\n" not in str(caught.value)
    assert caught.value.param == "prompt"


GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, [SamplingParams(), SamplingParams()]),
        (GREEDY, [GREEDY, GREEDY]),
        ({"temperature": 0.0}, [GREEDY, GREEDY]),
        ({}, [SamplingParams(), SamplingParams()]),
        ([GREEDY, {"seed": 3}], [GREEDY, SamplingParams(seed=3)]),
        (generator(GREEDY, None), [GREEDY, SamplingParams()]),
    ],
)
def test_parameters_in_every_form(params: Any, expected: list[SamplingParams]) -> None:
    assert plain_params(params, 2) == expected


@pytest.mark.parametrize(
    ("params", "words", "param"),
    [
        ([GREEDY], "1 SamplingParams for 2 prompts; give one for all or one for each", "sampling_params"),
        ([GREEDY] * 3, "3 SamplingParams for 2 prompts", "sampling_params"),
        ({"temprature": 1}, "unknown sampling parameter 'temprature'; known are: allowed_token_ids", "temprature"),
        ({"temperature": -1}, "sampling parameter temperature=-1", "temperature"),
        ([GREEDY, {"top_p": 2}], "sampling parameter top_p=2", "top_p"),
        ({1: 2}, "sampling_params has the key 1; keys are names", "sampling_params"),
        ("greedy", "sampling_params is a str; give SamplingParams, a dict", "sampling_params"),
        (0.7, "sampling_params is a float; give SamplingParams, a dict", "sampling_params"),
        ([GREEDY, 3], "sampling_params[1] is an int; give", "sampling_params"),
    ],
)
def test_what_are_no_parameters_is_refused_on_one_line(params: Any, words: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plain_params(params, 2)
    assert str(caught.value).startswith(words), caught.value
    assert "\n" not in str(caught.value)
    assert caught.value.param == param


def test_parameters_for_one_prompt() -> None:
    with pytest.raises(InvalidRequestError, match="2 SamplingParams for 1 prompt; give"):
        plain_params([GREEDY, GREEDY], 1)


USER = {"role": "user", "content": "Hello!"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], [[USER]]),
        ((USER, USER), [[USER, USER]]),
        (generator(USER), [[USER]]),
        ([[USER], [USER, USER]], [[USER], [USER, USER]]),
        (generator(generator(USER), (USER,)), [[USER], [USER]]),
        ([], [[]]),
    ],
)
def test_conversations_in_every_form(messages: Any, expected: list[Any]) -> None:
    assert plain_conversations(messages) == expected


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (USER, "messages is a dict; give a list of messages, such as [{'role': 'user', 'content': 'Hello!'}]"),
        ("Hello!", "messages is a str; give a list of messages"),
        (b"Hello!", "messages is bytes; give a list of messages"),
        (None, "messages is None; give a list of messages"),
        (["Hello!"], "messages[0] is a str; messages must be dicts with role and content, or lists of those"),
        ([USER, [USER]], "messages[0] is a dict; messages must be dicts with role and content, or lists of those"),
        ([[USER], USER], "messages[1] is a dict; messages must be"),
        ([3], "messages[0] is an int; messages must be"),
    ],
)
def test_what_is_no_conversation_is_refused_on_one_line(messages: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plain_conversations(messages)
    assert str(caught.value).startswith(words), caught.value
    assert caught.value.param == "messages"
