"""Calls in an answer are found whatever pieces it comes in; what is no call is passed on as it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.server.json_object import ObjectReader
from outrider.server.tool_parser import ToolParser, ToolStyle

NAMES = ("f", "g")
CUTS = st.lists(st.integers(1, 12), max_size=40)


def parse(style: ToolStyle, text: str, cuts: list[int]) -> tuple[str, list[tuple[str, str]]]:
    """(text, [(name, arguments)]), from ``text`` in pieces of these lengths and the rest at once."""
    parser = ToolParser(style, NAMES)
    deltas, place = [], 0
    for cut in cuts:
        deltas.append(parser.feed(text[place : place + cut]))
        place += cut
    deltas += [parser.feed(text[place:]), parser.finish()]
    calls: dict[int, tuple[str, str]] = {}
    ids: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.calls):
        assert (call.name is not None) == (call.index not in calls)
        assert ids.setdefault(call.index, call.id) == call.id
        name, arguments = calls.get(call.index, (call.name or "", ""))
        calls[call.index] = (name, arguments + call.arguments)
    assert list(calls) == list(range(parser.num_calls))
    assert len(set(ids.values())) == len(ids)
    return "".join(delta.content for delta in deltas), list(calls.values())


CASES: list[tuple[ToolStyle, str, str, list[tuple[str, str]]]] = [
    ("hermes", "no call at all < <tool", "no call at all < <tool", []),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "", [("f", "{}")]),
    (
        "hermes",
        'Sure. <tool_call>{"name": "f", "arguments": {"a": [1, "}\\""]}}</tool_call>',
        "Sure. ",
        [("f", '{"a": [1, "}\\""]}')],
    ),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "g"}</tool_call>', "", [("g", '{"a": 1}')]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {"b": 2}}</tool_call>\n',
        "",
        [("f", "{}"), ("g", '{"b": 2}')],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call> Done.', "Done.", [("f", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "h", "arguments": {}}</tool_call>!',
        '<tool_call>{"name": "h", "arguments": {}}</tool_call>!',
        [],
    ),
    ("hermes", "<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
    ("hermes", '<tool_call>{"name": 7}', '<tool_call>{"name": 7}', []),
    ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {}}', []),
    ("json", ' {"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ("json", '{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
    ("json", '{"name": "f", "parameters": {}}; {"name": "g", "arguments": {}}', "", [("f", "{}"), ("g", "{}")]),
    ("json", '{"city": "Paris"}', '{"city": "Paris"}', []),
    ("json", "{curly} words", "{curly} words", []),
    ("json", 'Words {"name": "f"}', 'Words {"name": "f"}', []),
    ("json", "  \n", "  \n", []),
]


@pytest.mark.parametrize(("style", "text", "content", "calls"), CASES)
@settings(max_examples=30)
@given(cuts=CUTS)
def test_the_pieces_make_no_difference(
    style: ToolStyle, text: str, content: str, calls: list[tuple[str, str]], cuts: list[int]
) -> None:
    assert parse(style, text, cuts) == (content, calls)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(arguments=st.dictionaries(st.text(), JSON, max_size=4), cuts=CUTS, before=st.text(), ascii_only=st.booleans())
def test_any_arguments_come_through_as_they_were_written(
    arguments: dict[str, object], cuts: list[int], before: str, ascii_only: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    before = before.replace("<", "")
    text = f'{before}<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    assert parse("hermes", text, cuts) == (before, [("f", written)])


@given(text=st.text(alphabet='<>/tol_cal{}":, fg\\'), cuts=CUTS)
def test_no_text_breaks_the_parser_and_none_is_lost(text: str, cuts: list[int]) -> None:
    styles: tuple[ToolStyle, ...] = ("hermes", "json")
    for style in styles:
        content, calls = parse(style, text, cuts)
        if not calls:
            assert content == text


def test_arguments_are_told_while_they_grow() -> None:
    parser = ToolParser("hermes", NAMES)
    assert parser.feed('<tool_call>{"name": "f"').calls == []
    (named,) = parser.feed(', "arguments": {"a').calls
    assert (named.name, named.arguments) == ("f", '{"a')
    (more,) = parser.feed('": 1').calls
    assert (more.name, more.arguments) == (None, '": 1')


@given(value=st.dictionaries(st.text(), JSON, max_size=4), rest=st.text(), indent=st.sampled_from([None, 2]))
def test_an_object_is_read_to_its_end(value: dict[str, object], rest: str, indent: int | None) -> None:
    reader = ObjectReader()
    assert reader.feed(json.dumps(value, indent=indent) + rest) == rest
    assert reader.done
    assert {key: json.loads(raw) for key, raw in reader.members.items()} == value


@pytest.mark.parametrize("text", ["x", "{x", '{"a" 1', '{"a": ]', '{"a": 1,, ', '{"a": , ', "[1]", '{"\\x": 1}'])
def test_what_is_no_object_is_seen_at_once(text: str) -> None:
    reader = ObjectReader()
    reader.feed(text)
    assert reader.failed
    assert not reader.done
