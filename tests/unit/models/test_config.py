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


GEMMA3: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "num_hidden_layers": 4,
}


def test_mistral_has_a_window_on_every_layer_unless_it_says_null() -> None:
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"]}
    assert ModelConfig.from_hf({**mistral, "sliding_window": 8}).sliding_windows == (8, 8)
    assert ModelConfig.from_hf({**mistral, "sliding_window": None}).window(1) is None
    assert ModelConfig.from_hf(mistral).window(1) == 4096


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_windows_begin_at_a_layer_or_are_listed(family: str) -> None:
    qwen = {**LLAMA, "architectures": [f"Q{family[1:]}ForCausalLM"], "sliding_window": 8, "max_window_layers": 1}
    assert ModelConfig.from_hf(qwen).sliding_windows == ()
    assert ModelConfig.from_hf({**qwen, "use_sliding_window": True}).sliding_windows == (None, 8)
    listed = {**qwen, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
    assert ModelConfig.from_hf(listed).sliding_windows == (8, None)


def test_qwen3_norms_its_heads_and_has_no_bias() -> None:
    config = ModelConfig.from_hf({**LLAMA, "architectures": ["Qwen3ForCausalLM"]})
    assert (config.qk_norm, config.attention_bias, config.head_dim) == (True, False, 128)


@pytest.mark.parametrize(
    ("rope", "theta", "scaling", "local"),
    [
        ({}, 1e6, None, 1e4),
        ({"rope_theta": 5e5, "rope_local_base_freq": 7.0}, 5e5, None, 7.0),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 1e6, RopeScaling("linear", 8.0), 1e4),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
                }
            },
            5e5,
            RopeScaling("linear", 8.0),
            7.0,
        ),
    ],
)
def test_gemma3(rope: dict[str, Any], theta: float, scaling: RopeScaling | None, local: float) -> None:
    config = ModelConfig.from_hf({**GEMMA3, **rope})
    assert (config.rope_theta, config.rope_scaling, config.local_rope_theta) == (theta, scaling, local)
    assert (config.activation, config.qk_norm, config.sandwich_norms) == ("gelu_tanh", True, True)
    assert config.tie_word_embeddings
    assert config.embedding_scale == pytest.approx(32**0.5)
    assert config.attention_scale == pytest.approx(24**-0.5)


def test_gemma3_sees_everything_on_every_sixth_layer_unless_it_lists_which() -> None:
    assert ModelConfig.from_hf({**GEMMA3, "num_hidden_layers": 7}).sliding_windows == (*[8] * 5, None, 8)
    assert ModelConfig.from_hf({**GEMMA3, "sliding_window_pattern": 2}).sliding_windows == (8, None, 8, None)
    listed = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    assert ModelConfig.from_hf({**GEMMA3, "layer_types": listed}).sliding_windows == (None, 8, None, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "'Gemma3ForConditionalGeneration'.*use a GGUF file"),
        ({"hidden_activation": "silu"}, "hidden_activation='silu' is not supported; supported is 'gelu_pytorch_tanh'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=true"),
        ({"sliding_window": None}, "lacks 'sliding_window'"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"layer_types": ["full_attention"]}, "layer_types=.'full_attention'. is not supported; it must list"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types=.*chunked_attention"),
        ({"num_hidden_layers": 1 << 31}, "num_layers=2147483648"),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "layers with a window"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters="),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope scaling 'yarn'"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0"),
    ],
)
def test_what_does_not_fit_in_gemma3_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said) as caught:
        ModelConfig.from_hf({**GEMMA3, **change})
    assert "\n" not in str(caught.value)


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
        ({"use_sliding_window": True}, "use_sliding_window=true is not supported for llama"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}, "lacks 'max_window_layers'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types=.* is not supported for llama"),
        ({"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, "attention_bias=true"),
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
