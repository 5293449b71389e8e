"""Thoughts are told from the answer whatever pieces it comes in, with calls and given forms after them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.config import EngineConfig
from outrider.engine.memory import MemoryPlan
from outrider.engine.setup import ReadyEngine
from outrider.models.tokenizer import Tokenizer
from outrider.runner.model_runner import ModelRunner
from outrider.sampling.grammar import GrammarCompiler
from outrider.sampling_params import StructuredOutputs
from outrider.server.reasoning import ReasoningParser, ReasoningStyle, after_thoughts, is_open, is_read
from outrider.server.settings import ServerSettings
from tests.serving import TOOL_TEMPLATE, TOY_CONFIG, RunningServer, running
from tests.toy import ToyModel
from tests.unit.engine.helpers import engine_of, oracle

CASES: list[tuple[bool, str, str, str]] = [
    (False, "no thoughts < <thin", "", "no thoughts < <thin"),
    (False, "  spaced", "", "  spaced"),
    (False, "<think>\nwhy  not\n</think>\n\n so. ", "why  not", "so. "),
    (False, "\n <think>a</think>b", "a", "b"),
    (False, "<think>\n\n</think>\n\nb", "", "b"),
    (False, "<think>a </thin </think>b</think>", "a </thin", "b</think>"),
    (False, "x <think>a</think>b", "", "x <think>a</think>b"),
    (False, "<think>never ends </thi ", "never ends </thi", ""),
    (False, "<thinking>", "", "<thinking>"),
    (False, "<thi", "", "<thi"),
    (False, "", "", ""),
    (True, "a\n</think>\nb", "a", "b"),
    (True, "</think>b", "", "b"),
    (True, " a", "a", ""),
    (True, "a</think> \n", "a", ""),
]


@given(st.sampled_from(CASES), st.lists(st.integers(1, 9), max_size=30))
def test_any_pieces_give_the_same_two_texts(case: tuple[bool, str, str, str], cuts: list[int]) -> None:
    opened, text, reasoning, content = case
    parser, said, place = ReasoningParser(opened=opened), [], 0
    for cut in cuts:
        said.append(parser.feed(text[place : place + cut]))
        place += cut
    said += [parser.feed(text[place:]), parser.finish()]
    assert "".join(each.reasoning for each in said) == reasoning
    assert "".join(each.content for each in said) == content
    assert parser.found == (opened or text.lstrip().startswith("<think>"))


@given(st.text(alphabet="<>/think \n", max_size=40), st.booleans(), st.lists(st.integers(1, 5), max_size=20))
def test_nothing_but_marks_and_space_is_lost(text: str, opened: bool, cuts: list[int]) -> None:
    def parts(cuts: list[int]) -> tuple[str, str]:
        parser, said, place = ReasoningParser(opened=opened), [], 0
        for cut in cuts:
            said.append(parser.feed(text[place : place + cut]))
            place += cut
        said += [parser.feed(text[place:]), parser.finish()]
        return "".join(each.reasoning for each in said), "".join(each.content for each in said)

    reasoning, content = parts([])
    assert parts(cuts) == (reasoning, content)
    rest = text
    for piece in (reasoning, content):
        assert piece in rest
        rest = rest.replace(piece, "", 1)
    assert rest.replace("<think>", "", 1).replace("</think>", "", 1).strip() == ""


def test_what_is_said_is_told_as_soon_as_it_is_certain() -> None:
    parser = ReasoningParser(opened=False)
    told = [parser.feed(text) for text in ("<think>", "I ", "see </", "br> </", "think>", "\n\n", "Yes", " <")]
    assert [each.reasoning for each in told] == ["", "I", " see", " </br>", "", "", "", ""]
    assert [each.content for each in told] == [""] * 6 + ["Yes", " <"]


@pytest.mark.parametrize(
    ("style", "template", "read"),
    [
        ("auto", "{{ '<think>' }}", True),
        ("auto", "{{ content.split('</think>')[-1] }}", True),
        ("auto", "{{ content }}", False),
        ("auto", None, False),
        ("think", "{{ content }}", True),
        ("off", "<think>", False),
    ],
)
def test_a_chat_template_says_whether_a_model_thinks(style: ReasoningStyle, template: str | None, read: bool) -> None:
    assert is_read(style, template) == read


def test_a_prompt_may_open_the_thoughts_or_close_them() -> None:
    assert is_open("assistant\n<think>\n")
    assert not is_open("assistant\n<think>\n\n</think>\n\n")
    assert not is_open("<think> a </think> assistant\n")


def test_a_form_holds_for_what_follows_the_thoughts() -> None:
    assert after_thoughts(None) is None
    later = StructuredOutputs(regex="a", after="now: ")
    assert after_thoughts(later) is later
    moved = after_thoughts(StructuredOutputs(regex="a"))
    assert moved is not None
    assert (moved.regex, moved.after) == ("a", "</think>")


END = "<end>"
PIECES = [
    "?",
    "<th",
    "ink>",
    "I ",
    "see",
    "\n",
    "</",
    "think>\n\n",
    "{",
    '"a"',
    ":",
    "1",
    "}",
    "think>",
    " Fine",
    ".",
    END,
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = ["<tool_", "call>", '{"name"', ': "f", ', '"arguments"', ": {}}", "</tool_", "call>"]


@contextmanager
def thinking_server(
    script: Sequence[str], *, opened: bool = False, style: ReasoningStyle = "auto"
) -> Iterator[RunningServer]:
    """A model that says ``script`` and nothing else, all of it in blocks of drafts that are accepted."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    pieces = list(dict.fromkeys([*PIECES, *CALL]))
    ids = {piece: index for index, piece in enumerate(pieces)}
    in_bytes = {piece.replace(" ", "Ġ").replace("\n", "Ċ"): index for piece, index in ids.items()}
    backend = Backend(models.BPE(in_bytes, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    # The model knows by the question mark where its prompt ends; characters without a token are left out.
    opening = "<think>\n" if opened else ""
    template = f"{TOOL_TEMPLATE}?{opening}{{# <think> #}}"
    tokenizer = Tokenizer(backend, chat_template=template)
    said = [ids[piece] for piece in script]

    def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
        end = len(context) - context[::-1].index(0) if 0 in context else len(context)
        place = max(0, len(context) - end - len(tokenizer.encode(opening)))
        probs = np.full(len(pieces), 1e-6)
        probs[said[min(place, len(said) - 1)]] = 1.0
        found: NDArray[np.float64] = probs / probs.sum()
        return found

    def build(_: EngineConfig) -> ReadyEngine:
        engine = engine_of(
            ModelRunner(ToyModel(len(pieces), distribution), num_blocks=512, block_size=4),
            oracle(distribution, vocab_size=len(pieces)),
            4,
            new_stream=tokenizer.stream,
            seed=0,
            max_model_len=1024,
            end_token_ids=frozenset([ids[END]]),
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            grammars=GrammarCompiler(tokenizer.backend.to_str, len(pieces), [ids[END]]),
        )
        memory = MemoryPlan(0, 0, 512, 4, bytes_per_block=32, draft_bytes_per_block=0)
        return ReadyEngine(engine, tokenizer, "toy", memory)

    with running(TOY_CONFIG, ServerSettings(reasoning_parser=style), build=build) as server:
        yield server


def asked(server: RunningServer, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole message, and the deltas of the same answer streamed; checks that they say the same."""
    fields = {"temperature": 0, "logprobs": True, **fields}
    whole = server.chat("q", **fields)
    assert whole.status_code == 200, whole.text
    choice = whole.json()["choices"][0]
    message = choice["message"]
    lines = server.chat("q", stream=True, **fields).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines if line.startswith("data: {")]
    deltas = [chunk["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
    assert "".join(delta.get("content", "") for delta in deltas) == (message["content"] or "")
    assert any("reasoning_content" in delta for delta in deltas) == ("reasoning_content" in message)
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    assert len(deltas) < fields["max_tokens"]  # several tokens came at once
    # Log-probabilities are those of all tokens, thoughts and marks included.
    assert len(choice["logprobs"]["content"]) == fields["max_tokens"]
    return message, deltas


THOUGHT = ["<th", "ink>", "\n", "I ", "see", "\n", "</", "think>\n\n"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_thoughts_come_in_a_field_of_their_own(cut: int) -> None:
    script = ["\n"] * (cut - 1) + THOUGHT + [" Fine", "."]  # so that blocks of drafts cut the marks elsewhere
    with thinking_server(script) as server:
        message, deltas = asked(server, max_tokens=len(script))
        assert server.client.get("/v1/models").json()["data"][0]["reasoning"] is True
        plain = server.client.post(
            "/v1/completions", json={"prompt": "?", "max_tokens": len(script), "temperature": 0}
        ).json()
    assert message == {"role": "assistant", "content": "Fine.", "refusal": None, "reasoning_content": "I see"}
    assert deltas[0]["role"] == "assistant"
    assert plain["choices"][0]["text"] == "".join(script)


def test_thoughts_that_the_prompt_opens_and_those_that_never_end() -> None:
    with thinking_server([*THOUGHT[2:], "."], opened=True) as server:
        message, deltas = asked(server, max_tokens=len(THOUGHT) - 1)
    assert (message["reasoning_content"], message["content"]) == ("I see", ".")
    assert "reasoning_content" in deltas[0]
    with thinking_server(THOUGHT) as server:
        message, _ = asked(server, max_tokens=5)
    assert (message["reasoning_content"], message["content"]) == ("I see", "")


def test_empty_thoughts_are_told_as_such() -> None:
    with thinking_server(["<th", "ink>", "</", "think>\n\n", " Fine", "."]) as server:
        message, _ = asked(server, max_tokens=6)
    assert (message["reasoning_content"], message["content"]) == ("", "Fine.")


def test_without_the_parser_marks_are_text() -> None:
    with thinking_server([*THOUGHT, "."], style="off") as server:
        message, deltas = asked(server, max_tokens=9)
        assert server.client.get("/v1/models").json()["data"][0]["reasoning"] is False
    assert message == {"role": "assistant", "content": "<think>\nI see\n</think>\n\n.", "refusal": None}
    assert all("content" in delta for delta in deltas)


@pytest.mark.parametrize("opened", [False, True])
def test_calls_are_found_after_the_thoughts_and_not_in_them(opened: bool) -> None:
    thought = THOUGHT[2:] if opened else THOUGHT
    script = [*thought[:-2], *CALL, *thought[-2:], *CALL]
    with thinking_server(script, opened=opened) as server:
        message, _ = asked(server, max_tokens=len(script), tools=[TOOL])
    assert message["reasoning_content"] == "I see\n" + "".join(CALL)
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}


def test_a_given_form_holds_for_what_follows_thoughts_that_the_prompt_opens() -> None:
    # The grammar begins after the token that completes the mark, which must not bring more with it.
    script = ["I ", "see", "</", "think>", "{", '"a"', ":", "1", "}", END]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with thinking_server(script, opened=True) as server:
        message, _ = asked(server, max_tokens=len(script), response_format=form)
        assert (message["reasoning_content"], message["content"]) == ("I see", '{"a":1}')
    with thinking_server(script[:4] + ["."] * 3 + script[4:], opened=True) as server:
        # The model would go on with text, which the form forbids.
        message, _ = asked(server, max_tokens=8, response_format=form)
        assert message["reasoning_content"] == "I see"
        assert message["content"].startswith("{")
    with thinking_server(THOUGHT) as server:
        # Nobody opened thoughts, so the form holds from the first token on.
        message, _ = asked(server, max_tokens=4, response_format=form)
        assert "reasoning_content" not in message
        assert message["content"].startswith("{")


def test_earlier_thoughts_reach_the_chat_template() -> None:
    with thinking_server([*THOUGHT, "."]) as server:
        server.ready.tokenizer.chat_template = "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}"
        messages = [{"role": "assistant", "content": "b", "reasoning_content": "1:1"}]
        found = server.client.post("/tokenize", json={"messages": messages}).json()
    assert found["count"] == len("1:1")
