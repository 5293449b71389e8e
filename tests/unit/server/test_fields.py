"""From a request's fields to sampling parameters."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outrider.sampling_params import SamplingParams
from outrider.server.errors import ApiError, api_error, field_path
from outrider.server.fields import sampling_params, speculation
from outrider.server.schemas import ChatCompletionRequest

METHODS = ("off", "ngram", "suffix")


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
    params = sampling_params(chat(**fields), METHODS, 5)
    expected = SamplingParams(**{**fields, "logit_bias": {5: -3.0}})
    assert params == expected
    # Each of them differs from its default, so none could have been forgotten unseen.
    default = SamplingParams()
    assert all(getattr(expected, name) != getattr(default, name) for name in fields)


def test_nulls_are_fields_left_out() -> None:
    fields = dict.fromkeys(ChatCompletionRequest.model_fields.keys() - {"messages"})
    assert sampling_params(chat(**fields, best_of=None, suffix=None), METHODS, 5) == SamplingParams()


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (None, {}),
        ("auto", {}),
        ({}, {}),
        ("ngram", {"speculative_method": "ngram"}),
        ("off", {"speculative_method": "off"}),
        ({"method": "off", "num_speculative_tokens": 3}, {"speculative_method": "off"}),
        ({"num_speculative_tokens": 0}, {"num_speculative_tokens": 0}),
        ({"num_speculative_tokens": 5}, {"num_speculative_tokens": 5}),
        (
            {"method": "suffix", "num_speculative_tokens": 2},
            {"speculative_method": "suffix", "num_speculative_tokens": 2},
        ),
    ],
)
def test_a_request_may_choose_its_drafter_and_lower_k(wanted: Any, chosen: dict[str, Any]) -> None:
    assert speculation(wanted, METHODS, 5) == chosen
    params = sampling_params(chat(speculative_config=wanted), METHODS, 5)
    assert params == SamplingParams(**chosen)


@pytest.mark.parametrize(
    ("wanted", "methods", "most", "message"),
    [
        ("eagle3", METHODS, 5, "method='eagle3' is not at work here; available are: auto, off, ngram, suffix"),
        ({"method": []}, METHODS, 5, r"method=\[\] is not at work here"),
        ("ngram", ("off",), 0, "available are: auto, off$"),
        ({"num_speculative_tokens": 6}, METHODS, 5, "=6 is above this server's 5"),
        ({"num_speculative_tokens": 1}, ("off",), 0, "=1 is above this server's 0"),
        ({"num_speculative_tokens": True}, METHODS, 5, "=True must be an integer from 0 to 64"),
        ({"num_speculative_tokens": -1}, METHODS, 5, "=-1 must be an integer"),
        ({"model": "x"}, METHODS, 5, "speculative_config.model is set when the server starts"),
    ],
)
def test_what_a_request_can_not_have_is_said(wanted: Any, methods: tuple[str, ...], most: int, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        speculation(wanted, methods, most)
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
