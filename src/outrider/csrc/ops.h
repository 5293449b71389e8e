// Kernels spread over the threads of a region: linear over channel blocks, attention over requests and heads, row-wise
// work over rows. Chooses the variant of the kernels. Knows nothing about models or Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "matrix.h"
#include "thread_pool.h"

namespace outrider {

// The kernels in use: the best that the processor has, unless set_variant or OUTRIDER_VARIANT chose others.
const Kernels& kernels();
void set_variant(const std::string& name);  // "auto" or a name; throws std::invalid_argument when not available
std::vector<std::string> available_variants();

// Read bytes once with every thread, in four streams each: what the memory allows. Returns a checksum, so that the reads
// are real.
uint64_t read_all(const uint8_t* data, int64_t bytes);

// Memory that only grows; 64-byte aligned, not initialized.
class Buffer {
public:
    template <class T>
    T* get(int64_t count) {
        return static_cast<T*>(reserve(size_t(count > 0 ? count : 1) * sizeof(T)));
    }

private:
    void* reserve(size_t bytes);
    struct Free { void operator()(void* p) const; };
    std::unique_ptr<void, Free> memory_;
    size_t size_ = 0;
};

// Floats from one row to the next: never a multiple of a page, where all rows would fall on the same lines of the cache.
static inline int64_t row_stride(int64_t cols) { return (cols + 15) / 16 * 16 + 16; }

// Inputs of linear products: float32 rows and, for integer formats, the same rows quantized in tiles.
struct Rows {
    int64_t rows = 0, cols = 0;
    float* x = nullptr;      // row r at x + r * ldx
    int64_t ldx = 0;
    Activation* q = nullptr; // null when no integer format reads them

    int64_t groups() const { return (cols + kGroup - 1) / kGroup; }
    int tile_rows(int64_t tile) const { return int(rows - tile * kRowTile < kRowTile ? rows - tile * kRowTile : kRowTile); }
    Activation* tile(int64_t t) const { return q + t * kRowTile * groups(); }
    // Quantize groups [g0, g1) of row r from x.
    void quantize(const Kernels& k, int64_t r, int64_t g0, int64_t g1) const {
        const int64_t t = r / kRowTile;
        k.quantize(x + r * ldx, cols, g0, g1, tile(t) + r % kRowTile, tile_rows(t));
    }
    void quantize(const Kernels& k, int64_t r) const {
        if (q) quantize(k, r, 0, groups());
    }
};

struct LinearJob {
    const PackedMatrix* matrix;
    float* y;
    int64_t ldy;
    const float* bias;  // padded to whole blocks, or null
    bool accumulate;
};

// All jobs read the same rows.
void linear(Team& team, const Kernels& k, const LinearJob* jobs, int count, const Rows& x);

// The attention of one layer of one step.
struct AttentionBatch {
    int64_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0;
    std::vector<int64_t> query_start, seq_lens;  // requests + 1, requests
    const int64_t* block_tables = nullptr;       // [requests, max_blocks]
    int64_t max_blocks = 0;
    const int64_t* positions = nullptr;          // [rows]
    // A row of request r at position p >= tree_start[r] is a node of a tree: its keys from position tree_start[r] on,
    // itself the last, lie at the places tree[row * tree_depth ...] of the request.
    std::vector<int64_t> tree_start;             // requests, or empty: no trees
    const int64_t* tree = nullptr;               // [rows, tree_depth]
    int64_t tree_depth = 0;
    bool half = false;
    int64_t block_size = 0;

    // Fixed by plan():
    struct Chunk { int request, kv_head; int64_t row; int rows; int64_t seen, parts, first_partial; };
    std::vector<Chunk> chunks;
    bool split = false;  // partitions are tasks of their own
    int64_t partials = 0;
    int chunk_rows = 1;
    void plan(int threads);
    int64_t state_floats() const;  // of one partial result
};

// query [rows, heads * head_dim], already scaled, rows ldq apart; out the same shape, rows ldo apart. work: attention_work() floats.
int64_t attention_work(const AttentionBatch& batch, int threads);
void attention(Team& team, const Kernels& k, const AttentionBatch& batch, const float* query, int64_t ldq,
               const void* keys, const void* values, int64_t window, float* out, int64_t ldo, float* work);

}  // namespace outrider
