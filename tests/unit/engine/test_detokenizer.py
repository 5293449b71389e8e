"""Text piece by piece: nothing lost, nothing of a stop string shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.detokenizer import Detokenizer


class Texts:
    """Token i adds the i-th text."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def step(self, token_id: int) -> str:
        return self._texts[token_id]

    def finish(self) -> str:
        return "\ufffd" if self._texts[-1] == "incomplete" else ""


@given(
    texts=st.lists(st.text("ab", max_size=3), max_size=12),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_pieces_join_to_the_text_before_the_first_stop_string(texts: list[str], stop: list[str]) -> None:
    detokenizer = Detokenizer(Texts(texts), stop)
    found = None
    for token_id in range(len(texts)):
        found = detokenizer.push(token_id)
        if found is not None:
            break
        shown = detokenizer.text
        assert not any(s in shown for s in stop)
    detokenizer.finish()
    whole = "".join(texts[: len(detokenizer.token_texts)])
    if found is None:
        assert detokenizer.text == whole == "".join(texts)
        assert not any(s in whole for s in stop)
    else:
        assert whole.startswith(detokenizer.text + found)
        assert min(whole.find(s) for s in stop if s in whole) == len(detokenizer.text)


def test_a_stop_string_across_tokens_is_held_back_until_settled() -> None:
    detokenizer = Detokenizer(Texts(["one EN", "D", "O", " two E"]), ["END."])
    pushed = [(detokenizer.push(i), detokenizer.text) for i in range(4)]
    assert pushed == [(None, "one "), (None, "one "), (None, "one ENDO"), (None, "one ENDO two ")]
    detokenizer.finish()
    assert detokenizer.text == "one ENDO two E"
    assert detokenizer.token_texts == ["one ", "", "ENDO", " two E"]


def test_a_character_that_never_became_complete_shows_at_the_end_but_not_after_a_stop_string() -> None:
    detokenizer = Detokenizer(Texts(["x", "END", "incomplete"]), ["END"])
    detokenizer.push(0)
    detokenizer.finish()
    assert detokenizer.text == "x\ufffd"
    detokenizer = Detokenizer(Texts(["x", "END", "incomplete"]), ["END"])
    assert [detokenizer.push(0), detokenizer.push(1)] == [None, "END"]
    detokenizer.finish()
    assert detokenizer.text == "x"


def test_hidden_tokens_add_no_text_but_keep_their_place() -> None:
    detokenizer = Detokenizer(Texts(["x", "</s>"]), [])
    detokenizer.push(0)
    detokenizer.push(1, hidden=True)
    assert detokenizer.token_texts == ["x", ""]
