"""Text as it streams out of blocks of tokens: no character cut, nothing of a stop string shown, wherever blocks end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.request import Request
from outrider.runner.model_runner import ModelRunner
from outrider.sampling_params import SamplingParams
from tests.toy import ToyModel
from tests.unit.engine.helpers import KSchedule, ScriptedDrafter, engine_of
from tests.unit.sampling.byte_tokenizer import END_TOKEN, byte_tokenizer

BYTES = 272
TOKENIZER = byte_tokenizer()
TEXT = "naïve 東京 👩‍👩‍👧 ST STO STÖ ende: 東STOP and more, 東京 unseen"
SCRIPT = [*TEXT.encode(), END_TOKEN]
PROMPT = [1, 2]


def distribution(context: tuple[int, ...]) -> NDArray[np.float64]:
    place = len(context) - len(PROMPT)
    weights = np.full(BYTES, 1e-5)
    weights[SCRIPT[min(place, len(SCRIPT) - 1)]] = 1.0
    return np.asarray(weights / weights.sum())


class Bytes:
    """A character at a time, from the tokenizer's own stream."""

    def __init__(self, skip_special_tokens: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)

    def step(self, token_id: int) -> str:
        return self._stream.step(TOKENIZER, token_id) or ""

    def finish(self) -> str:
        return ""


def _mostly_right(request: Request, max_tokens: int) -> Sequence[int]:
    """The script's next bytes; in every third step the last of them is wrong."""
    drafts = SCRIPT[request.num_output_tokens :][:max_tokens]
    return [*drafts[:-1], ord("~")] if drafts and request.num_output_tokens % 3 == 0 else drafts


def pieces(k: int, params: SamplingParams) -> tuple[list[str], Any, int]:
    """What each step added to the text, the completion, and how many steps brought several tokens."""
    engine = engine_of(
        ModelRunner(ToyModel(BYTES, distribution), num_blocks=64, block_size=4),
        ScriptedDrafter(_mostly_right),
        KSchedule(lambda request: k),
        new_stream=Bytes,
        max_model_len=200,
        end_token_ids=frozenset({END_TOKEN}),
    )
    engine.add_request("x", PROMPT, params)
    texts, blocks = [], 0
    while engine.has_requests:
        for _, piece in engine.step():
            texts.append(piece.text)
            blocks += len(piece.token_ids) > 1
        engine.check_integrity()
    return texts, engine.take_output("x").outputs[0], blocks


@pytest.mark.parametrize("k", range(9))
def test_a_stop_string_is_found_across_the_borders_of_blocks_and_never_shown(k: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=150, stop=("STOP", "STÖP"))
    texts, completion, blocks = pieces(k, params)
    expected = TEXT[: TEXT.index("STOP")]
    assert "".join(texts) == completion.text == expected
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "STOP")
    assert completion.token_ids == tuple(SCRIPT[: len((expected + "STOP").encode())])
    shown = ""
    for text in texts:
        shown += text
        assert not any(shown.endswith("STOP"[:length]) for length in range(1, 5)) or shown == expected
    assert (blocks > 0) == (k > 0)


@pytest.mark.parametrize("k", range(9))
def test_no_piece_holds_half_a_character(k: int) -> None:
    texts, completion, _ = pieces(k, SamplingParams(temperature=0.0, max_tokens=150))
    assert "".join(texts) == completion.text == TEXT
    assert completion.finish_reason == "stop"
    assert not any("\ufffd" in text for text in texts)
