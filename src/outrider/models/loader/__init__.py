"""From a model reference to configuration, weights and tokenizer.

Weights carry the same names whatever file they come from: ``embed``, ``final_norm``, ``lm_head`` (absent when the
output matrix is the embedding) and, per layer i, ``layers.{i}.`` + ``attn_norm``, ``q``, ``k``, ``v``, ``o``,
``q_bias``, ``k_bias``, ``v_bias``, ``mlp_norm``, ``gate``, ``up``, ``down``, ``q_norm``, ``k_norm``,
``post_attn_norm``, ``post_mlp_norm`` (biases and the last four where the family has them). Matrices are [out, in].
Norms multiply by their weight as it is.
"""
