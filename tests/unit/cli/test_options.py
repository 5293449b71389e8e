"""Options that depend on one another are read together."""

from __future__ import annotations

import pytest

from outrider.cli._options import num_bytes, speculative_dict
from outrider.errors import ConfigError


@pytest.mark.parametrize("method", ["draft_model", "composite", "cross_vocab", '{"method": "draft_model"}'])
def test_a_method_and_its_model_may_come_from_two_options(method: str) -> None:
    chosen = speculative_dict(method, "draft.gguf", 3)
    assert chosen["model"] == "draft.gguf"
    assert chosen["num_speculative_tokens"] == 3


@pytest.mark.parametrize(
    ("config", "model", "message"),
    [
        ("draft_model", None, "method='draft_model' needs 'model'"),
        ("ngram", "draft.gguf", "method='ngram' takes no draft model"),
        ('{"model": "a"}', "b", "--draft-model 'b' contradicts model='a'"),
        ('{"method": ', None, "not valid JSON"),
        ("nonsense", None, "method='nonsense'"),
        ('{"metod": "ngram"}', None, "metod"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(config: str, model: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        speculative_dict(config, model, None)


@pytest.mark.parametrize(("text", "count"), [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1.5kb", 1500), ("77", 77)])
def test_amounts_of_memory(text: str, count: int) -> None:
    assert num_bytes("--kv-cache-memory", text) == count


@pytest.mark.parametrize("text", ["", "two", "2 GiB more", "-1", "5XB"])
def test_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        num_bytes("--kv-cache-memory", text)
