// Spreading kernels over threads, and the choice of the kernel variant.
#include "ops.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace outrider {
namespace {

bool runs([[maybe_unused]] const std::string& name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);  // Clang 14's builtin does not know its name
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
#if defined(OUTRIDER_EMULATE)
    return avx2;  // which the emulation of the others is compiled for
#endif
    if (name == "avx2") return avx2;
    if (name == "avxvnni") return avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
    if (name == "avx512")
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    return false;
}

std::vector<const Kernels*> usable() {  // the best first
    std::vector<const Kernels*> all;
    // Asked first: a variant's file may hold nothing that this processor can run.
    if (runs("avx512") && avx512_kernels()) all.push_back(avx512_kernels());
    if (runs("avxvnni") && avxvnni_kernels()) all.push_back(avxvnni_kernels());
    if (runs("avx2") && avx2_kernels()) all.push_back(avx2_kernels());
    all.push_back(portable_kernels());
    return all;
}

const Kernels* find(const std::string& name) {
    const std::vector<const Kernels*> all = usable();
    if (name.empty() || name == "auto") return all.front();
    for (const Kernels* k : all)
        if (name == k->name) return k;
    std::string known;
    for (const Kernels* k : all) known += std::string(known.empty() ? "" : ", ") + k->name;
    throw std::invalid_argument("kernel variant '" + name + "' is not available on this processor: " + known + " or auto");
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
    const Kernels* k = chosen.load(std::memory_order_acquire);
    if (!k) {
        const char* wish = std::getenv("OUTRIDER_VARIANT");
        k = find(wish ? wish : "auto");
        chosen.store(k, std::memory_order_release);
    }
    return *k;
}

void set_variant(const std::string& name) { chosen.store(find(name), std::memory_order_release); }

std::vector<std::string> available_variants() {
    std::vector<std::string> names;
    for (const Kernels* k : usable()) names.emplace_back(k->name);
    return names;
}

uint64_t read_all(const uint8_t* data, int64_t bytes) {
    constexpr int64_t span = 1 << 20;  // of one task, in four streams
    std::atomic<uint64_t> sum{0};
    pool().run([&](Team& team) {
        team.share(bytes / span, 1, [&](int64_t i, int64_t) {
            uint64_t total[16] = {0};
            for (int64_t at = 0; at < span / 4; at += 32) {
                for (int stream = 0; stream < 4; ++stream) {
                    uint64_t v[4];
                    __builtin_memcpy(v, data + i * span + stream * (span / 4) + at, sizeof v);
                    for (int l = 0; l < 4; ++l) total[4 * stream + l] ^= v[l];
                }
            }
            uint64_t all = 0;
            for (uint64_t t : total) all ^= t;
            sum.fetch_xor(all);
        });
    });
    return sum.load();
}

void Buffer::Free::operator()(void* p) const { std::free(p); }

void* Buffer::reserve(size_t bytes) {
    if (bytes > size_) {
        memory_.reset();
        size_ = 0;
        const size_t rounded = (bytes + bytes / 4 + 63) / 64 * 64;
        memory_.reset(std::aligned_alloc(64, rounded));
        if (!memory_) throw std::bad_alloc();
        size_ = rounded;
    }
    return memory_.get();
}

void linear(Team& team, const Kernels& k, const LinearJob* jobs, int count, const Rows& x) {
    // Rows per visit of some blocks: their activations stay in the second cache.
    constexpr int64_t cache = 160 << 10;
    int64_t total = 0;
    for (int j = 0; j < count; ++j) total += jobs[j].matrix->blocks();
    const int64_t tiles = (x.rows + kRowTile - 1) / kRowTile;
    const int64_t visit = std::max<int64_t>(1, cache / (kRowTile * x.cols * (x.q ? 2 : 4)));
    const int64_t grain = std::clamp<int64_t>(total / (team.threads() * 12), 1, 4);
    team.share(total, grain, [&](int64_t begin, int64_t end) {
        for (int64_t t0 = 0; t0 < tiles; t0 += visit) {
            const int64_t t1 = std::min(tiles, t0 + visit);
            int j = 0;
            int64_t first = 0;  // of job j
            for (int64_t b = begin; b < end; ++b) {
                while (b - first >= jobs[j].matrix->blocks()) first += jobs[j++].matrix->blocks();
                const PackedMatrix& m = *jobs[j].matrix;
                const int64_t local = b - first;
                const uint8_t* w = m.data + size_t(local) * m.block_bytes();
                TileOut out;
                out.ldy = jobs[j].ldy;
                out.cols = int(std::min<int64_t>(kChannels, m.rows - local * kChannels));
                out.bias = jobs[j].bias ? jobs[j].bias + local * kChannels : nullptr;
                out.accumulate = jobs[j].accumulate;
                for (int64_t t = t0; t < t1; ++t) {
                    out.y = jobs[j].y + t * kRowTile * out.ldy + local * kChannels;
                    const float* rows = x.x + t * kRowTile * x.ldx;
                    if (m.format == Format::F32)
                        k.linear_f32(w, m.cols, rows, x.ldx, x.tile_rows(t), out);
                    else if (m.format == Format::BF16)
                        k.linear_bf16(w, m.padded_cols(), rows, x.ldx, x.tile_rows(t), out);
                    else
                        k.linear_q[int(m.format)](w, m.groups(), x.tile(t), x.tile_rows(t), out);
                }
            }
        }
    });
}

void AttentionBatch::plan(int threads) {
    const int64_t group = heads / kv_heads;
    chunk_rows = int(std::clamp<int64_t>(64 / group, 1, kRowTile));
    chunks.clear();
    partials = 0;
    int64_t longest = 1;
    for (size_t r = 0; r < seq_lens.size(); ++r) {
        for (int64_t row = query_start[r]; row < query_start[r + 1]; row += chunk_rows) {
            const int64_t n = std::min<int64_t>(chunk_rows, query_start[r + 1] - row);
            const int64_t seen = *std::max_element(positions + row, positions + row + n) + 1;
            const int64_t parts = (seen + kPartition - 1) / kPartition;
            longest = std::max(longest, parts);
            for (int64_t h = 0; h < kv_heads; ++h) {
                chunks.push_back({int(r), int(h), row, int(n), seen, parts, partials});
                partials += parts;
            }
        }
    }
    split = longest > 1 && int64_t(chunks.size()) < 3 * threads && threads > 1;
    // The longest first, so that no thread is left alone with one at the end.
    if (!split)
        std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.parts > b.parts; });
}

int64_t AttentionBatch::state_floats() const {
    const int64_t queries = chunk_rows * (heads / kv_heads);
    return (queries * (padded_dim(head_dim) + 2) + 15) / 16 * 16;
}

int64_t attention_work(const AttentionBatch& b, int threads) {
    const int64_t scratch = attention_scratch(b.chunk_rows * (b.heads / b.kv_heads), b.head_dim);
    return threads * ((scratch + 15) / 16 * 16 + 2 * b.state_floats()) + (b.split ? b.partials * b.state_floats() : 0);
}

namespace {

struct State {
    float *acc, *maximum, *total;
    State(float* memory, int64_t queries, int64_t padded)
        : acc(memory), maximum(memory + queries * padded), total(maximum + queries) {}
};

}  // namespace

void attention(Team& team, const Kernels& k, const AttentionBatch& b, const float* query, int64_t ldq,
               const void* keys, const void* values, int64_t window, float* out, int64_t ldo, float* work) {
    const int64_t group = b.heads / b.kv_heads, padded = padded_dim(b.head_dim), state = b.state_floats();
    const int64_t scratch = (attention_scratch(b.chunk_rows * group, b.head_dim) + 15) / 16 * 16;
    float* shared = work + team.threads() * (scratch + 2 * state);
    const auto own = [&](int thread) { return work + thread * (scratch + 2 * state); };

    const auto task_of = [&](const AttentionBatch::Chunk& c, int thread) {
        AttentionTask t;
        const int64_t element = c.kv_head * b.head_dim * (b.half ? 2 : 4);
        t.query = query + c.row * ldq + c.kv_head * group * b.head_dim;
        t.ldq = ldq;
        t.keys = static_cast<const uint8_t*>(keys) + element;
        t.values = static_cast<const uint8_t*>(values) + element;
        t.half = b.half;
        t.block_size = b.block_size;
        t.kv_heads = b.kv_heads;
        t.head_dim = b.head_dim;
        t.block_table = b.block_tables + c.request * b.max_blocks;
        t.rows = c.rows;
        t.heads = int(group);
        t.position = b.positions + c.row;
        t.window = window;
        t.tree = nullptr;
        t.tree_start = b.tree_start.empty() ? c.seen : b.tree_start[size_t(c.request)];
        t.ready = std::min(c.seen, t.tree_start);
        t.scratch = own(thread);
        return t;
    };
    const auto part = [&](const AttentionBatch::Chunk& c, int64_t index, const State& s, int thread) {
        const AttentionTask t = task_of(c, thread);
        int64_t begin = index * kPartition;
        const int64_t end = std::min<int64_t>(begin + kPartition, c.seen);
        if (window > 0) {  // whole pieces before every row's window are skipped
            const int64_t low = *std::min_element(t.position, t.position + t.rows) - window + 1;
            if (low > begin) begin = std::min(end, low / kPiece * kPiece);
        }
        if (end <= t.tree_start) {
            k.attend(t, begin, end, s.acc, s.maximum, s.total);
            return;
        }
        // Where the tree begins each row has keys of its own.
        for (int r = 0; r < t.rows; ++r) {
            AttentionTask one = t;
            one.rows = 1;
            one.query += r * ldq;
            one.position += r;
            one.tree = b.tree + (c.row + r) * b.tree_depth;
            const int64_t i = r * group;
            k.attend(one, begin, std::min(end, *one.position + 1), s.acc + i * padded, s.maximum + i, s.total + i);
        }
    };
    const auto finish = [&](const AttentionBatch::Chunk& c, const State& s) {
        for (int r = 0; r < c.rows; ++r)
            for (int64_t h = 0; h < group; ++h) {
                const int64_t i = r * group + h;
                float* y = out + (c.row + r) * ldo + (c.kv_head * group + h) * b.head_dim;
                k.finish(s.acc + i * padded, s.total[i], b.head_dim, y);
            }
    };
    const auto merge = [&](int64_t queries, const State& into, const State& from) {
        k.merge(queries, b.head_dim, into.acc, into.maximum, into.total, from.acc, from.maximum, from.total);
    };

    if (!b.split) {
        team.share(int64_t(b.chunks.size()), 1, [&](int64_t begin, int64_t, int thread) {
            const AttentionBatch::Chunk& c = b.chunks[size_t(begin)];
            const int64_t queries = c.rows * group;
            float* states = own(thread) + scratch;
            const State sum(states, queries, padded), next(states + state, queries, padded);
            part(c, 0, sum, thread);
            for (int64_t p = 1; p < c.parts; ++p) {
                part(c, p, next, thread);
                merge(queries, sum, next);
            }
            finish(c, sum);
        });
        return;
    }
    // Neighbours go to one thread, which fetches the next while it computes one.
    const int64_t grain = std::max<int64_t>(1, b.partials / (10 * team.threads()));
    team.share(b.partials, grain, [&](int64_t begin, int64_t end, int thread) {
        size_t i = 0;
        for (int64_t at = begin; at < end; ++at) {
            while (i + 1 < b.chunks.size() && b.chunks[i + 1].first_partial <= at) ++i;
            const AttentionBatch::Chunk& c = b.chunks[i];
            part(c, at - c.first_partial, State(shared + at * state, c.rows * group, padded), thread);
        }
    });
    team.share(int64_t(b.chunks.size()), 1, [&](int64_t begin, int64_t) {
        const AttentionBatch::Chunk& c = b.chunks[size_t(begin)];
        const int64_t queries = c.rows * group;
        const State sum(shared + c.first_partial * state, queries, padded);
        for (int64_t p = 1; p < c.parts; ++p)
            merge(queries, sum, State(shared + (c.first_partial + p) * state, queries, padded));
        finish(c, sum);
    });
}

}  // namespace outrider
