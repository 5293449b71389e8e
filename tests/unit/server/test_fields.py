"""From a request's fields to sampling parameters."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outrider.config import SpeculativeConfig
from outrider.sampling_params import SamplingParams
from outrider.server.errors import ApiError, api_error, field_path
from outrider.server.fields import draft_cap, sampling_params
from outrider.server.schemas import ChatCompletionRequest

NGRAM = SpeculativeConfig(method="ngram", num_speculative_tokens=5)
OFF = SpeculativeConfig(method="off")


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})


def test_every_sampling_field_arrives() -> None:
    fields: dict[str, Any] = {
        "max_tokens": 7,
        "temperature": 2,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.25,
        "typical_p": 0.75,
        "n": 2,
        "seed": 11,
        "stop": ["x", "y"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "min_tokens": 2,
        "skip_special_tokens": False,
        "logit_bias": {"5": -3},
        "allowed_token_ids": [1, 2],
        "bad_words": ["z"],
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "prompt_logprobs": 2,
    }
    params = sampling_params(chat(**fields), NGRAM, "ngram")
    expected = SamplingParams(**{**fields, "logit_bias": {5: -3.0}})
    assert params == expected
    # Each of them differs from its default, so none could have been forgotten unseen.
    default = SamplingParams()
    assert all(getattr(expected, name) != getattr(default, name) for name in fields)


def test_nulls_are_fields_left_out() -> None:
    fields = dict.fromkeys(ChatCompletionRequest.model_fields.keys() - {"messages"})
    assert sampling_params(chat(**fields, best_of=None, suffix=None), NGRAM, "ngram") == SamplingParams()


@pytest.mark.parametrize(
    ("wanted", "cap"),
    [
        (None, None),
        ("auto", None),
        ("ngram", None),
        ({}, None),
        ("off", 0),
        ({"method": "off"}, 0),
        ({"method": "off", "num_speculative_tokens": 3}, 0),
        ({"num_speculative_tokens": 0}, 0),
        ({"num_speculative_tokens": 5}, 5),
        ({"method": "ngram", "num_speculative_tokens": 2}, 2),
    ],
)
def test_drafts_may_be_capped_per_request(wanted: Any, cap: int | None) -> None:
    assert draft_cap(wanted, NGRAM, "ngram") == cap


@pytest.mark.parametrize(
    ("wanted", "speculative", "message"),
    [
        ("suffix", NGRAM, "method='suffix' is not at work here; available are: auto, off, ngram"),
        ({"method": []}, NGRAM, r"method=\[\] is not at work here"),
        ("ngram", OFF, "available are: auto, off"),
        ({"num_speculative_tokens": 6}, NGRAM, "=6 is above this server's 5"),
        ({"num_speculative_tokens": 1}, OFF, "=1 is above this server's 0"),
        ({"num_speculative_tokens": True}, NGRAM, "=True must be an integer from 0 to 64"),
        ({"num_speculative_tokens": -1}, NGRAM, "=-1 must be an integer"),
        ({"model": "x"}, NGRAM, "speculative_config.model is set when the server starts"),
    ],
)
def test_what_a_request_can_not_have_is_said(wanted: Any, speculative: SpeculativeConfig, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        draft_cap(wanted, speculative, "ngram" if speculative is NGRAM else None)
    assert caught.value.param == "speculative_config"


def test_what_nobody_foresaw_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = api_error(KeyError("inner detail"))
    assert error.status == 500
    assert "inner detail" not in error.message
    assert "inner detail" in caplog.text


def test_long_quotations_are_cut_and_stay_on_one_line() -> None:
    body = ApiError(400, "a\nb " + "x" * 5000).body()["error"]
    assert body["message"].startswith("a b x")
    assert len(body["message"]) < 700


@pytest.mark.parametrize(
    ("location", "body", "path"),
    [
        (("messages", 0, "role"), {"messages": [{"role": 1}]}, "messages[0].role"),
        (("stop", "list[str]", 1), {"stop": ["a", 1]}, "stop[1]"),
        (("stop", "str"), {"stop": 5}, "stop"),
        ((), [], None),
        (("a", "b"), None, None),
    ],
)
def test_a_field_is_named_by_its_place_in_the_body(location: Any, body: Any, path: str | None) -> None:
    assert field_path(location, body) == path
