"""Reading a Hugging Face config.json."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig, RopeScaling

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama() -> None:
    config = ModelConfig.from_hf({**LLAMA, "rope_theta": 5e5, "tie_word_embeddings": True})
    assert config == ModelConfig(
        family="llama",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        tie_word_embeddings=True,
        eos_token_ids=(2,),
        bos_token_id=1,
    )


def test_qwen2_has_a_bias_and_may_state_a_window_that_it_does_not_use() -> None:
    config = ModelConfig.from_hf(
        {
            **LLAMA,
            "architectures": ["Qwen2ForCausalLM"],
            "sliding_window": 4096,
            "use_sliding_window": False,
            "layer_types": ["full_attention", "full_attention"],
        }
    )
    assert (config.family, config.attention_bias) == ("qwen2", True)


def test_absent_values_have_the_defaults_of_the_family() -> None:
    few = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "eos_token_id")}
    config = ModelConfig.from_hf(few)
    assert (config.num_kv_heads, config.rope_theta, config.eos_token_ids) == (4, 10000.0, ())


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_scaling": None}, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeScaling("linear", 2.0)),
        ({"rope_scaling": LLAMA3}, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 7.0}}, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
    ],
)
def test_rope_scaling_of_older_and_newer_files(rope: dict[str, Any], expected: RopeScaling | None) -> None:
    config = ModelConfig.from_hf({**LLAMA, **rope})
    assert config.rope_scaling == expected
    assert config.rope_theta == (7.0 if "rope_parameters" in rope else 10000.0)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps"])
def test_missing_values_are_named(key: str) -> None:
    with pytest.raises(ModelFormatError, match=f"lacks '{key}'"):
        ModelConfig.from_hf({name: value for name, value in LLAMA.items() if name != key})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported; supported are: LlamaForCausalLM"),
        ({"architectures": None}, "architectures=None"),
        ({"hidden_size": "32"}, "hidden_size='32'"),
        ({"hidden_size": 33}, "hidden_size=33 is not a multiple of num_attention_heads=4"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"num_attention_heads": True}, "num_attention_heads=True"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3"),
        ({"head_dim": 7}, "head_dim=7 is odd"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0"),
        ({"rope_theta": float("inf")}, "rope_theta=inf"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id="),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=true"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}, "use_sliding_window"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 5.0}}, "low_freq_factor < high_freq_factor"),
        ({"rope_scaling": [1]}, r"rope_scaling=\[1\]"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method='awq'.*unquantized"),
    ],
)
def test_what_does_not_fit_is_named_on_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said) as caught:
        ModelConfig.from_hf({**LLAMA, **change})
    assert "\n" not in str(caught.value)
