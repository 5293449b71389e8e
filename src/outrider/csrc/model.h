// A whole pre-norm decoder in one call: weights registered once, then one region of the thread pool per step. Knows
// nothing about files, sampling or Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ops.h"
#include "thread_choice.h"

namespace outrider {

struct DecoderConfig {
    int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;
    float eps = 1e-6f;
    float attention_scale = 0.0f;  // times query . key
    float embedding_scale = 1.0f;
    Act act = Act::Silu;
};

// A matrix [out, in] with an optional bias, padded to whole blocks.
struct Linear {
    PackedMatrix matrix;
    std::vector<float> bias;
};

struct Layer {
    Linear q, k, v, o, gate, up, down;
    // Norm weights as factors; empty where the family has none. post_*: of a sublayer's output, before the residual.
    std::vector<float> attn_norm, mlp_norm, q_norm, k_norm, post_attn_norm, post_mlp_norm;
    std::vector<float> rope;  // inverse frequencies [head_dim / 2]
    int64_t window = 0;       // 0: sees everything
};

// K and V of every layer, each [num_blocks, block_size, kv_heads, head_dim].
struct Cache {
    std::vector<void*> keys, values;
    int64_t num_blocks = 0, block_size = 0, kv_heads = 0, head_dim = 0;
    bool half = false;  // float16, else float32
};

struct Step {
    int64_t rows = 0, num_logits = 0;
    const int64_t* token_ids = nullptr;     // [rows]
    const int64_t* slot_mapping = nullptr;  // [rows]
    const int64_t* logit_rows = nullptr;    // [num_logits]
    AttentionBatch attention;               // everything but what plan() fixes
    float* logits = nullptr;                // [num_logits, outputs]
    // Layers, ascending or not, whose input is wanted; num_layers: the output of the last one, before the final norm.
    std::vector<int64_t> capture;
    float* hidden = nullptr;                // [num_logits, capture, hidden] receives them; null if capture is empty
};

// Throws std::invalid_argument when requests, lengths and block tables do not fit each other or the cache.
void check_requests(const AttentionBatch& batch, int64_t rows, int64_t num_blocks);

class Model {
public:
    // Throws std::invalid_argument when shapes do not fit.
    Model(const DecoderConfig& config, PackedMatrix embed, Linear head, std::vector<float> final_norm,
          std::vector<Layer> layers);
    const DecoderConfig& config() const { return config_; }
    int64_t num_layers() const { return int64_t(layers_.size()); }
    int64_t outputs() const { return head_.matrix.rows; }  // fewer than the vocabulary if the head is trimmed
    // Throws std::invalid_argument for ids, slots or blocks out of range. Steps of several threads take turns. How many
    // of the pool's threads work is chosen by the times of earlier steps.
    void forward(Step& step, const Cache& cache);
    int threads() const { return threads_.load(); }  // that worked at the last step; 0 before the first

private:
    void check(const Step& step, const Cache& cache) const;
    const DecoderConfig config_;
    const PackedMatrix embed_;
    const Linear head_;
    const std::vector<float> final_norm_;
    const std::vector<Layer> layers_;
    bool quantized_ = false;  // some matrix reads quantized rows
    std::mutex turn_;
    ThreadChoice choice_;
    std::atomic<int> threads_{0};
    Buffer hidden_, normed_, normed_q_, qkv_, mixed_, mixed_q_, gate_, mid_, mid_q_, angles_, work_;
};

}  // namespace outrider
