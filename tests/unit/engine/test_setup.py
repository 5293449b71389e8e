"""A draft model's vocabulary against the target's: padding makes no difference, a real token does, by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from outrider.engine.setup import check_same_vocabulary
from outrider.errors import VocabularyMismatchError
from outrider.models.tokenizer import Tokenizer


class Opened:
    """As much of an opened model as is looked at."""

    def __init__(self, name: str, tokens: Sequence[str]) -> None:
        self.name = name
        made = tokenizers.Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        self.tokenizer = Tokenizer(made)


def check(target: Sequence[str], draft: Sequence[str]) -> None:
    opened: list[Any] = [Opened("the-target", target), Opened("the-draft", draft)]
    check_same_vocabulary(*opened)


def test_padding_is_no_difference() -> None:
    check("abc", ["a", "b", "c", "[PAD3]", "[PAD4]"])
    check(["a", "b", "c", "[PAD3]"], "abc")


def test_a_real_token_that_differs_is_named_and_so_is_the_way_out() -> None:
    with pytest.raises(VocabularyMismatchError) as caught:
        check("abcd", "abXd")
    message = str(caught.value)
    for words in ("the-draft", "the-target", "at id 2: 'X' in the draft, 'c' in the target", "method='cross_vocab'"):
        assert words in message
    assert "\n" not in message
