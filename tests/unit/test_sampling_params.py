"""What sampling parameters accept, and how they refuse the rest: one line that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.sampling_params import SamplingParams


def test_what_is_given_is_normalised() -> None:
    params = SamplingParams(
        stop="x",  # type: ignore[arg-type]
        bad_words="y",  # type: ignore[arg-type]
        bad_token_ids=[3, [4, 5]],  # type: ignore[arg-type]
        logit_bias={"7": 1},  # type: ignore[dict-item]
        allowed_token_ids=[1, 2],  # type: ignore[arg-type]
    )
    assert (params.stop, params.bad_words, params.bad_token_ids) == (("x",), ("y",), ((3,), (4, 5)))
    assert (params.logit_bias, params.allowed_token_ids) == ({7: 1.0}, (1, 2))
    assert SamplingParams(top_k=1).greedy
    assert not SamplingParams(min_p=1.0).greedy


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_p": 2}, "min_p=2"),
        ({"min_p": float("nan")}, "min_p=nan"),
        ({"typical_p": 0}, "typical_p=0"),
        ({"repetition_penalty": -1}, "repetition_penalty=-1"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan"),
        ({"frequency_penalty": 2.5}, "frequency_penalty=2.5"),
        ({"presence_penalty": -3}, "presence_penalty=-3"),
        ({"logit_bias": {5: 101}}, "101"),
        ({"logit_bias": {-1: 1}}, "-1"),
        ({"logit_bias": [1]}, r"logit_bias=\[1\]"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (-4,)}, "allowed_token_ids.0=-4"),
        ({"bad_token_ids": ((),)}, "bad_token_ids"),
        ({"bad_token_ids": "abc"}, "bad_token_ids='abc'"),
        ({"bad_words": ("",)}, "bad_words.*must not contain an empty string"),
        ({"stop": ("",)}, "stop.*must not contain an empty string"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 is above max_tokens=8"),
        ({"n": 0}, "n=0"),
        ({"logprobs": -1}, "logprobs=-1"),
        ({"prompt_logprobs": "many"}, "prompt_logprobs='many'"),
        ({"logprobs_mode": "cooked"}, "logprobs_mode='cooked'"),
        ({"logits_processors": (3,)}, "logits_processors.0=3"),
        ({"best_of": 3}, "unknown sampling parameter 'best_of'; known are: .*min_p"),
    ],
)
def test_bad_values_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        SamplingParams(**settings)
    assert "\n" not in str(caught.value)
    if len(settings) == 1:
        assert str(caught.value.param).split(".")[0] == next(iter(settings))
