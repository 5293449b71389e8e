"""Masks of a grammar at any place: against the language itself, and wherever one comes from."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.errors import InvalidRequestError
from outrider.sampling.grammar import Grammar, GrammarCompiler
from outrider.sampling_params import SamplingParams, StructuredOutputs
from tests.unit.sampling.toy_grammar import letter_grammar

SIZE, END = 4, 3
REGEX = "ab?c|b(a|b)|c{1,3}"
LANGUAGE = [
    tokens
    for length in range(4)
    for tokens in itertools.product(range(END), repeat=length)
    if re.fullmatch(REGEX, "".join("abc"[token] for token in tokens))
]


def may_follow(prefix: tuple[int, ...]) -> set[int]:
    """By the language: the tokens that keep some word of it possible."""
    following = {word[len(prefix)] for word in LANGUAGE if len(word) > len(prefix) and word[: len(prefix)] == prefix}
    return following | ({END} if prefix in LANGUAGE else set())


def allowed(grammar: Grammar, output: list[int], drafted: list[int]) -> set[int]:
    mask = grammar.allowed(output, drafted)
    return set(range(SIZE)) if mask is None else {token for token in range(SIZE) if mask[token]}


def legal_length(tokens: list[int]) -> int:
    """How many may come one after another; everything after an end token is not counted."""
    for place, token in enumerate(tokens):
        if token not in may_follow(tuple(tokens[:place])):
            return place
        if token == END:
            return place + 1
    return len(tokens)


@settings(max_examples=200)
@given(st.data())
def test_masks_are_those_of_the_language_along_any_course_of_drafts(data: st.DataObject) -> None:
    grammar = letter_grammar(REGEX, SIZE)
    output: list[int] = []
    for _ in range(data.draw(st.integers(1, 8))):
        drafted = data.draw(st.lists(st.integers(0, END), max_size=4))
        legal = legal_length([*output, *drafted])
        assert grammar.num_legal(output, drafted) == max(0, min(legal - len(output), len(drafted)))
        if legal == len(output) + len(drafted) and END not in [*output, *drafted]:
            assert allowed(grammar, output, drafted) == may_follow((*output, *drafted))
        else:
            allowed(grammar, output, drafted)  # decides nothing, and does no harm
        choices = sorted(may_follow(tuple(output)))
        if END not in output and choices and data.draw(st.booleans()):
            output.append(data.draw(st.sampled_from(choices)))


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, END - 1), max_size=8), min_size=1, max_size=5))
def test_a_marker_may_end_anywhere_and_be_taken_back(paths: list[list[int]]) -> None:
    grammar = letter_grammar("a+", SIZE, marker=b"bc")
    for path in paths:
        text = "".join("abc"[token] for token in path)
        at = text.find("bc")
        got = allowed(grammar, [], path)
        if at < 0:
            assert got == set(range(SIZE))
            assert grammar.num_legal([], path) == len(path)
        elif re.fullmatch("a*", after := text[at + 2 :]):
            assert got == ({0, END} if after else {0})


def test_after_an_end_token_everything_may_come_because_nothing_will() -> None:
    grammar = letter_grammar(REGEX, SIZE)
    assert grammar.allowed([2, END]) is None
    assert grammar.num_legal([2], [END, 0]) == 1
    assert letter_grammar(REGEX, SIZE).num_legal([0], [END]) == 0, "not yet complete"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "give exactly one of json, json_object, regex, grammar, choice, not none"),
        ({"regex": "a", "choice": ["b"]}, "not regex and choice"),
        ({"after": "x"}, "not none"),
        ({"choice": []}, "choice"),
        ({"json": "{"}, "is not JSON"),
        ({"json": 3}, "must be a schema"),
        ({"json": "null"}, "must be a schema"),
        ({"regexp": "a"}, "unknown structured_outputs key 'regexp'"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        StructuredOutputs(**keys)
    assert caught.value.param == "structured_outputs"


def test_ignore_eos_does_not_go_with_a_grammar() -> None:
    with pytest.raises(InvalidRequestError, match="ignore_eos"):
        SamplingParams(structured_outputs=StructuredOutputs(regex="a"), ignore_eos=True)


def compiler(end_token_ids: tuple[int, ...] = (256,)) -> GrammarCompiler:
    from tests.unit.sampling.byte_tokenizer import byte_tokenizer

    return GrammarCompiler(byte_tokenizer().to_str, 300, end_token_ids)


COMPILER = compiler()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"regex": "(a"}, r"structured_outputs regex is not valid: .*unclosed group"),
        ({"grammar": "start: ???"}, r"structured_outputs grammar is not valid"),
        ({"json": {"type": "objekt"}}, r"structured_outputs json is not valid: .*objekt"),
        ({"regex": "[a&&b]"}, r"structured_outputs regex is not valid: no text can match it"),
        ({"grammar": "start: start"}, r"structured_outputs grammar is not valid: no text can match it"),
        ({"grammar": "start: <nope>"}, r"structured_outputs grammar is not valid: .*unknown special token"),
    ],
)
def test_what_is_no_grammar_is_refused_on_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        compiler().grammar(StructuredOutputs(**keys))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


NO_END = 'start: "a" loop | "c" "d"\nloop: "x" loop'
"""After "a" it never ends, which llguidance finds out where it looks for what is forced; "cd" is its only text."""


@settings(max_examples=20)
@given(st.lists(st.text("acdx", max_size=3), max_size=6))
def test_drafts_that_break_the_matcher_harm_no_other_place(paths: list[str]) -> None:
    grammar = COMPILER.grammar(StructuredOutputs(grammar=NO_END))
    for path in [*paths, "a"]:
        with contextlib.suppress(ValueError):
            grammar.allowed([], list(path.encode()))
    for prefix, following in (("", "ac"), ("c", "d")):
        mask = grammar.allowed([], list(prefix.encode()))
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == list(following.encode())
    assert grammar.num_legal([], list(b"cdx")) == 2


def test_a_dead_end_is_an_error_and_not_the_end() -> None:
    grammar = compiler().grammar(StructuredOutputs(grammar=NO_END))
    grammar.allowed([], [ord("a")])
    with pytest.raises(ValueError, match="the grammar cannot continue here: .*[Tt]oo many items"):
        grammar.allowed(list(b"ax"))


@settings(max_examples=50)
@example("\x7f")
@example('"\\\n')
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6))
def test_any_string_can_be_a_choice(text: str) -> None:
    grammar = COMPILER.grammar(StructuredOutputs(choice=(text, "other")))
    tokens = [*text.encode(), 256]
    assert grammar.num_legal([], tokens) == len(tokens)


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="need a model with an end token"):
        compiler(()).grammar(StructuredOutputs(regex="a"))


def test_padding_never_comes_and_requests_do_not_share_their_place() -> None:
    makes = compiler()
    first, second = (makes.grammar(StructuredOutputs(regex="[^x]y")) for _ in range(2))
    mask = first.allowed([])
    assert mask is not None
    assert len(mask) == 300
    assert not mask[256:].any()
    first.allowed([ord("a")])
    again = second.allowed([])
    assert again is not None
    assert (again == mask).all()


def test_params_take_the_keys_as_a_dict() -> None:
    values: dict[str, Any] = {"structured_outputs": {"regex": "a"}}
    assert SamplingParams(**values).structured_outputs == StructuredOutputs(regex="a")


def test_a_pydantic_model_is_a_schema() -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str

    for source, schema in ((Person, Person.model_json_schema()), ('{"type": "integer"}', {"type": "integer"})):
        keys: dict[str, Any] = {"json": source}
        assert StructuredOutputs(**keys).json_schema == schema
