"""Encoding, streaming, vocabularies compared, chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from outrider.errors import InvalidRequestError
from outrider.models.loader.gguf_file import GGUFFile
from outrider.models.loader.gguf_tokenizer import load_tokenizer
from outrider.models.tokenizer import Tokenizer, VocabularyDifference

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FANCY = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {%- if message.role == 'stop' %}{% break %}{% endif %}
    {%- if message.role == 'assistant' %}
        {% generation %}{{ message.content | trim }}{% endgeneration %}
    {%- endif %}
    {{ message | tojson }}
    {% set ns = namespace(x=loop.index) %}{{ ns.x }}
{% endfor %}"""
TURNS = """{{ bos_token }}
{%- if (messages[0].role == 'user') == false %}{{ raise_exception('the user speaks first') }}{% endif %}
{%- for message in messages %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles take turns') }}{% endif %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "You <b>shout</b>."}, {"role": "user", "content": "2024 'quotes' \"and\" more"}],
    [
        {"role": "user", "content": "  spaces kept  "},
        {"role": "assistant", "content": " 中文 🙂 "},
        {"role": "tool", "content": "left out", "id": 7},
        {"role": "user", "content": "line\nbreak"},
        {"role": "stop", "content": ""},
        {"role": "user", "content": "after"},
    ],
]


@pytest.fixture(scope="module")
def tokenizer(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(backend, bos_token_id=1, eos_token_ids=(2,), chat_template=CHATML)


def texts(excluded: str = "", highest: int | None = None) -> st.SearchStrategy[str]:
    """Any text, without what is written like a control token."""
    return st.text(st.characters(codec="utf-8", exclude_characters=excluded + "<", max_codepoint=highest))


@settings(deadline=None)
@given(text=texts())
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_in_text_become_their_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>")
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 3)
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"
    assert tokenizer.token_text(1) == "<|im_start|>"
    assert tokenizer.special_ids == {0, 1, 2}


def test_what_is_no_text_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="must be a string, not bytes"):
        tokenizer.encode(b"ab")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"lone surrogate '\\ud83d' at index 2"):
        tokenizer.encode("ab\ud83d")


def streamed(tokenizer: Tokenizer, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens)
    return [*(stream.step(id) for id in ids), stream.finish()]


@settings(deadline=None)
@given(text=texts())
def test_streamed_text_is_the_text(tokenizer: Tokenizer, text: str) -> None:
    pieces = streamed(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert pieces[-1] == ("\ufffd" * (len(text) - len(text.rstrip("\ufffd"))))


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 266)), skip=st.booleans())
def test_streamed_text_of_any_tokens_is_their_decoded_text(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("character", ["é", "中", "🙂", "👩‍🚀"])
def test_characters_are_never_cut(tokenizer: Tokenizer, character: str) -> None:
    ids = tokenizer.encode(f"a{character}b")
    assert len(ids) == 2 + len(character.encode())  # one token for each byte
    pieces = streamed(tokenizer, ids)
    assert [piece for piece in pieces if piece] == ["a", *character, "b"]


def test_an_unfinished_character_shows_at_the_end(tokenizer: Tokenizer) -> None:
    assert streamed(tokenizer, tokenizer.encode("ab🙂")[:-1]) == ["a", "b", "", "", "", "\ufffd"]


def plain(*tokens: str) -> Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    return Tokenizer(made)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ("abc", "abc", None),
        ("abc", "abd", VocabularyDifference(3, 3, 2, "c", "d")),
        ("abc", "ab", VocabularyDifference(3, 2, 2, "c", None)),
        ("ab", "abc", VocabularyDifference(2, 3, 2, None, "c")),
        ("abc", "acb", VocabularyDifference(3, 3, 1, "b", "c")),
        (["a", "b", "[PAD2]", "[PAD3]"], "ab", None),
        (["a", "[PAD1]", "b"], "ab", VocabularyDifference(3, 2, 1, "[PAD1]", "b")),
    ],
)
def test_vocabularies_are_compared_by_id(
    own: Sequence[str], other: Sequence[str], expected: VocabularyDifference | None
) -> None:
    first, second = plain(*own), plain(*other)
    assert first.vocabulary_difference(second) == expected
    assert (first.fingerprint == second.fingerprint) == (expected is None)


def reference(tokenizer: Tokenizer, template: str, messages: list[dict[str, Any]], prompt: bool) -> str:
    import transformers

    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, bos_token="<|im_start|>")
    made.chat_template = template
    text: str = made.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    return text


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("template", [CHATML, FANCY])
def test_templates_render_as_in_transformers(
    backend: tokenizers.Tokenizer, template: str, messages: list[dict[str, Any]], prompt: bool
) -> None:
    tokenizer = Tokenizer(backend, chat_template=template, named_tokens={"bos_token": "<|im_start|>"})
    found = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt)
    assert found == reference(tokenizer, template, messages, prompt)


def test_strftime_now_is_there(backend: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer(backend, chat_template="{{ strftime_now('%Y') | int > 2000 }}")
    assert tokenizer.apply_chat_template(CONVERSATIONS[0]) == "True"


def test_a_template_that_writes_the_start_token_gets_it_once(backend: tokenizers.Tokenizer) -> None:
    """Gemma's shape: turns, the assistant called model, the start token written by the template."""
    tokenizer = Tokenizer(backend, chat_template=TURNS, named_tokens={"bos_token": "<|im_start|>"})
    messages = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Yes?"}, *CONVERSATIONS[0]]
    expected = reference(tokenizer, TURNS, messages, True)
    text = tokenizer.apply_chat_template(messages)
    assert text == expected
    assert text.startswith("<|im_start|><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of")
    assert tokenizer.encode(text, add_special_tokens=False).count(1) == 1
    with pytest.raises(InvalidRequestError, match="roles take turns"):
        tokenizer.apply_chat_template([*CONVERSATIONS[0], *CONVERSATIONS[0]])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        ("{% if %}", "chat template is damaged"),
        ("{{ raise_exception('roles must\nalternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[9].role }}", "refuses these messages"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
        ("{{ messages.append(1) }}", "refuses these messages"),
    ],
)
def test_a_template_that_cannot_serve_is_reported(
    backend: tokenizers.Tokenizer, template: str | None, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        Tokenizer(backend, chat_template=template).apply_chat_template(CONVERSATIONS[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages is empty"),
        ("Hi", "must be a list of objects with role and content, not str"),
        ({"role": "user", "content": "Hi"}, "not dict"),
        (["Hi"], r"messages\[0\] must be an object"),
        ([CONVERSATIONS[0][0], {"role": "user"}], r"messages\[1\] lacks 'content'"),
        ([{"content": "Hi"}], r"messages\[0\] lacks 'role'"),
        ([{"role": "user", "content": None}], r"messages\[0\].content must be a string, not NoneType"),
        ([{"role": "", "content": "Hi"}], r"messages\[0\].role is empty"),
    ],
)
def test_messages_that_do_not_fit_are_named(tokenizer: Tokenizer, messages: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        tokenizer.apply_chat_template(messages)
    assert caught.value.param == "messages"


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(GGUFFile(smollm2_path))


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("2024", ["2", "0", "2", "4"]),
        (" 12 apples", [" ", "1", "2", " apples"]),
        ("don't", ["don", "'t"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "\n"]),
    ],
)
def test_smollm2_tokens(smollm2: Tokenizer, text: str, tokens: list[str]) -> None:
    assert [smollm2.token_text(id) for id in smollm2.encode(text)] == tokens


@pytest.mark.model
@settings(deadline=None)
@given(text=texts("\x04\x06\x13\x14\x16\x1d", 0x3FFFF))  # its vocabulary has no token for the other bytes
def test_smollm2_text_comes_back(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == "".join(streamed(smollm2, ids)) == text


@pytest.mark.model
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_smollm2_chat_is_that_of_transformers(smollm2: Tokenizer, messages: list[dict[str, Any]]) -> None:
    assert smollm2.chat_template is not None
    text = smollm2.apply_chat_template(messages)
    assert text == reference(smollm2, smollm2.chat_template, messages, prompt=True)
    ids = smollm2.encode(text, add_special_tokens=False)
    assert smollm2.decode(ids, skip_special_tokens=False) == text
    roles = [id for id in ids if id == smollm2.bos_token_id]
    assert len(roles) == text.count("<|im_start|>")
    assert smollm2.eos_token_ids == (2, 0)
