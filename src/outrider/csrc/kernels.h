// The table of kernels that each processor variant fills in. Plain pointers only: the variants' translation units are
// compiled with their own machine flags and must not instantiate shared templates or inline functions.
//
// Every kernel computes a row in an order that does not depend on the other rows, their number or the thread.
#pragma once

#include "formats.h"

namespace outrider {

// Where a tile of linear outputs goes: y[r * ldy + c] for c < cols.
struct TileOut {
    float* y;
    int64_t ldy;
    int cols;           // valid channels of the block, 1..16
    const float* bias;  // 16 floats or null
    bool accumulate;    // add to y (a residual) instead of overwriting it
};

enum class Act : int { Silu, GeluTanh };

constexpr int kKeyTile = 16;     // keys whose scores are computed side by side
constexpr int kPiece = 64;       // keys of one online-softmax update
constexpr int kPartition = 128;  // keys of one partial result; partials are merged in order

// Attention of some rows of one request with the query heads of one KV head.
struct AttentionTask {
    const float* query;  // row i, head g: query + i * ldq + g * head_dim; already scaled
    int64_t ldq;
    const void* keys;    // [num_blocks, block_size, kv_heads, head_dim], already at the KV head
    const void* values;
    bool half;           // float16, else float32
    int64_t block_size, kv_heads, head_dim;
    const int64_t* block_table;
    int rows, heads;          // rows of this task, query heads per KV head
    const int64_t* position;  // of each row, which sees keys of positions 0..position
    int64_t window;           // 0: none; else keys of positions <= position - window are not seen
    const int64_t* tree;      // null, or the places of the row's keys from position tree_start on; then rows is 1
    int64_t tree_start;       // keys of positions before it, or of all without a tree, are at their own place
    int64_t ready;            // keys below it are read next and may be fetched
    float* scratch;          // attention_scratch() floats, owned by the thread
};

// Accumulators and V are padded to whole vectors.
static constexpr int64_t padded_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of scratch for rows * heads query vectors.
static constexpr int64_t attention_scratch(int64_t queries, int64_t head_dim) {
    return kKeyTile * padded_dim(head_dim) + queries * kPiece;
}

struct Kernels {
    const char* name;
    // Integer formats: one block of 16 channels times one tile of `rows` rows.
    void (*linear_q[kNumFormats])(const uint8_t* w, int64_t groups, const Activation* x, int rows, const TileOut& out);
    // F32 and BF16: x[r * ldx + k] float32.
    void (*linear_f32)(const uint8_t* w, int64_t k, const float* x, int64_t ldx, int rows, const TileOut& out);
    void (*linear_bf16)(const uint8_t* w, int64_t k, const float* x, int64_t ldx, int rows, const TileOut& out);
    // Quantize groups [g0, g1) of one row of n floats into records out[g * stride].
    void (*quantize)(const float* x, int64_t n, int64_t g0, int64_t g1, Activation* out, int64_t stride);
    // y = x / rms(x) * weight. x and y may be the same.
    void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
    void (*add)(float* y, const float* x, int64_t n);
    void (*scale)(float* y, float by, int64_t n);
    // y = act(gate) * up.
    void (*act_mul)(Act act, const float* gate, const float* up, int64_t n, float* y);
    // Rotate one head in place: pairs (i, i + half).
    void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
    // To float16, to nearest, at most 65504 in magnitude; a NaN or an infinity becomes a NaN.
    void (*to_half)(const float* x, int64_t n, uint16_t* y);
    // Largest value and its lowest index; if any value is NaN, value is NaN and index is the first NaN's.
    void (*argmax)(const float* x, int64_t n, int64_t* index, float* value);
    // log(sum(exp(x))).
    float (*log_sum_exp)(const float* x, int64_t n);
    // Keys [begin, end) of one partition into acc[query][padded_dim], maximum[query], total[query]; all overwritten.
    // Query (row i, head g) is i * heads + g. A row that sees no key of the range gets maximum -inf and total 0.
    void (*attend)(const AttentionTask& task, int64_t begin, int64_t end, float* acc, float* maximum, float* total);
    // Merge a later partition's result into an earlier one's.
    void (*merge)(int64_t queries, int64_t head_dim, float* acc, float* maximum, float* total, const float* acc2,
                  const float* maximum2, const float* total2);
    // out = acc / total.
    void (*finish)(const float* acc, float total, int64_t head_dim, float* out);
};

const Kernels* portable_kernels();
// Null where not compiled in:
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512_kernels();

}  // namespace outrider
