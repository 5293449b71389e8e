// The decoder's forward pass.
#include "model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>

namespace outrider {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void expect(const char* what, int64_t layer, const PackedMatrix& m, int64_t rows, int64_t cols) {
    if (m.rows == rows && m.cols == cols) return;
    fail(std::string(what) + " of layer " + std::to_string(layer) + " is [" + std::to_string(m.rows) + ", " +
         std::to_string(m.cols) + "], expected [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

void expect(const char* what, int64_t layer, const std::vector<float>& v, int64_t size, bool optional) {
    if (int64_t(v.size()) == size || (optional && v.empty())) return;
    fail(std::string(what) + " of layer " + std::to_string(layer) + " has " + std::to_string(v.size()) +
         " values, expected " + std::to_string(size));
}

const float* bias_of(const Linear& l) { return l.bias.empty() ? nullptr : l.bias.data(); }

}  // namespace

Model::Model(const DecoderConfig& config, PackedMatrix embed, Linear head, std::vector<float> final_norm,
             std::vector<Layer> layers)
    : config_(config), embed_(std::move(embed)), head_(std::move(head)), final_norm_(std::move(final_norm)),
      layers_(std::move(layers)) {
    const DecoderConfig& c = config_;
    if (c.kv_heads < 1 || c.heads < 1 || c.heads % c.kv_heads != 0)
        fail(std::to_string(c.heads) + " query heads cannot be shared by " + std::to_string(c.kv_heads) + " KV heads");
    if (c.head_dim < 2 || c.head_dim % 2 != 0) fail("head_dim " + std::to_string(c.head_dim) + " is not even");
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    expect("embed", -1, embed_, c.vocab, c.hidden);
    expect("lm_head", -1, head_.matrix, outputs(), c.hidden);
    expect("final_norm", -1, final_norm_, c.hidden, false);
    const auto note = [this](const Linear& l) { quantized_ = quantized_ || is_integer(l.matrix.format); };
    note(head_);
    for (int64_t i = 0; i < num_layers(); ++i) {
        const Layer& l = layers_[size_t(i)];
        expect("q", i, l.q.matrix, q, c.hidden);
        expect("k", i, l.k.matrix, kv, c.hidden);
        expect("v", i, l.v.matrix, kv, c.hidden);
        expect("o", i, l.o.matrix, c.hidden, q);
        expect("gate", i, l.gate.matrix, c.intermediate, c.hidden);
        expect("up", i, l.up.matrix, c.intermediate, c.hidden);
        expect("down", i, l.down.matrix, c.hidden, c.intermediate);
        expect("attn_norm", i, l.attn_norm, c.hidden, false);
        expect("mlp_norm", i, l.mlp_norm, c.hidden, false);
        expect("q_norm", i, l.q_norm, c.head_dim, true);
        expect("k_norm", i, l.k_norm, c.head_dim, true);
        expect("post_attn_norm", i, l.post_attn_norm, c.hidden, true);
        expect("post_mlp_norm", i, l.post_mlp_norm, c.hidden, true);
        expect("rope", i, l.rope, c.head_dim / 2, false);
        for (const Linear* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
            note(*m);
            if (!m->bias.empty() && int64_t(m->bias.size()) != m->matrix.blocks() * kChannels)
                fail("a bias of layer " + std::to_string(i) + " is not padded to whole blocks");
            if (m->matrix.cols % 2 != 0) fail("a matrix of layer " + std::to_string(i) + " has an odd number of columns");
        }
    }
}

// Positions are places, but for the nodes of a tree, whose ancestors must lie among the request's places.
static void check_places(const AttentionBatch& a, size_t r) {
    const int64_t start = a.seq_lens[r] - (a.query_start[r + 1] - a.query_start[r]);
    for (int64_t row = a.query_start[r]; row < a.query_start[r + 1]; ++row) {
        const int64_t position = a.positions[row], place = start + row - a.query_start[r];
        if (a.tree_start.empty() || position < a.tree_start[r]) {
            if (position == place) continue;
            fail("row " + std::to_string(row) + " has position " + std::to_string(position) + " at place " +
                 std::to_string(place) + ", but is in no tree");
        }
        const int64_t depth = position - a.tree_start[r] + 1;
        if (a.tree_start[r] < 0 || depth > a.tree_depth)
            fail("row " + std::to_string(row) + " has " + std::to_string(depth) + " places from its tree's start " +
                 std::to_string(a.tree_start[r]) + " on, tree holds " + std::to_string(a.tree_depth));
        for (int64_t i = 0; i < depth; ++i) {
            const int64_t at = a.tree[row * a.tree_depth + i];
            if (at < 0 || at >= a.seq_lens[r])
                fail("tree place " + std::to_string(at) + " of row " + std::to_string(row) + " is not below " +
                     std::to_string(a.seq_lens[r]));
        }
    }
}

void check_requests(const AttentionBatch& a, int64_t rows, int64_t num_blocks) {
    if (a.query_start.size() != a.seq_lens.size() + 1 || a.query_start.front() != 0 || a.query_start.back() != rows)
        fail("query_start must hold requests + 1 numbers from 0 to " + std::to_string(rows));
    if (!a.tree_start.empty() && a.tree_start.size() != a.seq_lens.size())
        fail("tree_start holds " + std::to_string(a.tree_start.size()) + " numbers for " +
             std::to_string(a.seq_lens.size()) + " requests");
    for (size_t r = 0; r < a.seq_lens.size(); ++r) {
        const int64_t n = a.query_start[r + 1] - a.query_start[r], blocks = (a.seq_lens[r] + a.block_size - 1) / a.block_size;
        if (n < 0 || a.seq_lens[r] < n)
            fail("request " + std::to_string(r) + " has " + std::to_string(n) + " new tokens of " +
                 std::to_string(a.seq_lens[r]));
        if (blocks > a.max_blocks)
            fail("request " + std::to_string(r) + " needs " + std::to_string(blocks) + " blocks, its table holds " +
                 std::to_string(a.max_blocks));
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t id = a.block_tables[int64_t(r) * a.max_blocks + b];
            if (id < 0 || id >= num_blocks)
                fail("block " + std::to_string(id) + " of request " + std::to_string(r) + " is not below " +
                     std::to_string(num_blocks));
        }
        check_places(a, r);
    }
}

void Model::check(const Step& s, const Cache& cache) const {
    const AttentionBatch& a = s.attention;
    const DecoderConfig& c = config_;
    if (int64_t(cache.keys.size()) != num_layers() || int64_t(cache.values.size()) != num_layers())
        fail("the cache has " + std::to_string(cache.keys.size()) + " layers, the model " + std::to_string(num_layers()));
    if (cache.kv_heads != c.kv_heads || cache.head_dim != c.head_dim)
        fail("the cache is made for " + std::to_string(cache.kv_heads) + " KV heads of " + std::to_string(cache.head_dim) +
             ", the model has " + std::to_string(c.kv_heads) + " of " + std::to_string(c.head_dim));
    const int64_t slots = cache.num_blocks * cache.block_size;
    for (int64_t i = 0; i < s.rows; ++i) {
        if (s.token_ids[i] < 0 || s.token_ids[i] >= c.vocab)
            fail("token id " + std::to_string(s.token_ids[i]) + " is not below the vocabulary's " + std::to_string(c.vocab));
        if (s.slot_mapping[i] < 0 || s.slot_mapping[i] >= slots)
            fail("slot " + std::to_string(s.slot_mapping[i]) + " is not below " + std::to_string(slots));
        if (a.positions[i] < 0) fail("position " + std::to_string(a.positions[i]) + " is negative");
    }
    for (int64_t i = 0; i < s.num_logits; ++i)
        if (s.logit_rows[i] < 0 || s.logit_rows[i] >= s.rows)
            fail("logit row " + std::to_string(s.logit_rows[i]) + " is not below " + std::to_string(s.rows));
    for (const int64_t layer : s.capture)
        if (layer < 0 || layer > num_layers())
            fail("captured layer " + std::to_string(layer) + " is not from 0 to " + std::to_string(num_layers()));
    check_requests(a, s.rows, cache.num_blocks);
}

void Model::forward(Step& s, const Cache& cache) {
    const std::lock_guard<std::mutex> lock(turn_);
    AttentionBatch& a = s.attention;
    const DecoderConfig& c = config_;
    a.rows = s.rows;
    a.heads = c.heads;
    a.kv_heads = c.kv_heads;
    a.head_dim = c.head_dim;
    a.half = cache.half;
    a.block_size = cache.block_size;
    check(s, cache);
    if (s.rows == 0) return;
    ThreadPool& workers = pool();
    const bool fixed = threads_fixed();
    const int threads = fixed ? workers.threads() : choice_.choose(s.rows, workers.threads());
    threads_.store(threads);
    a.plan(threads);

    const Kernels& k = kernels();
    const int64_t rows = s.rows, d = c.head_dim, half = d / 2, q_dim = c.heads * d, kv_dim = c.kv_heads * d;
    const int64_t qkv_dim = q_dim + 2 * kv_dim, scored = std::max(rows, s.num_logits);
    float* hidden = hidden_.get<float>(rows * c.hidden);
    float* qkv = qkv_.get<float>(rows * qkv_dim);
    float* gate = gate_.get<float>(rows * std::max(2 * c.intermediate, c.hidden));
    float* angles = angles_.get<float>(rows * d);  // cos [half] and sin [half]
    float* work = work_.get<float>(attention_work(a, threads));
    const auto inputs = [this](Buffer& x, Buffer& q, int64_t n, int64_t cols) {
        Rows r;
        r.rows = n;
        r.cols = cols;
        r.ldx = row_stride(cols);
        r.x = x.get<float>(n * r.ldx);
        if (quantized_) r.q = q.get<Activation>(n * r.groups());
        return r;
    };
    Rows normed = inputs(normed_, normed_q_, scored, c.hidden);
    normed.rows = rows;
    const Rows mixed = inputs(mixed_, mixed_q_, rows, q_dim), mid = inputs(mid_, mid_q_, rows, c.intermediate);

    const auto pass = [&](Team& team) {
        team.wake();
        const auto norm = [&](const float* x, const std::vector<float>& weight, const Rows& to, int64_t row) {
            k.rms_norm(x, weight.data(), c.hidden, c.eps, to.x + row * to.ldx);
            to.quantize(k, row);
        };
        // hidden += norm(y), then the next sublayer's input.
        const auto add_normed = [&](const std::vector<float>& post, float* y, int64_t row) {
            if (post.empty()) return;
            k.rms_norm(y, post.data(), c.hidden, c.eps, y);
            k.add(hidden + row * c.hidden, y, c.hidden);
        };
        // The residual stream as it enters a layer, copied for the rows that are scored.
        const auto captured = [&](int64_t layer) {
            for (size_t at = 0; at < s.capture.size(); ++at) {
                if (s.capture[at] != layer) continue;
                team.share(s.num_logits, 1, [&](int64_t i, int64_t) {
                    float* to = s.hidden + (i * int64_t(s.capture.size()) + int64_t(at)) * c.hidden;
                    std::copy_n(hidden + s.logit_rows[i] * c.hidden, c.hidden, to);
                });
            }
        };
        const std::vector<float>* rope = nullptr;
        team.share(rows, 1, [&](int64_t r, int64_t) {
            unpack_row(embed_, s.token_ids[r], hidden + r * c.hidden);
            if (c.embedding_scale != 1.0f) k.scale(hidden + r * c.hidden, c.embedding_scale, c.hidden);
        });
        for (size_t i = 0; i < layers_.size(); ++i) {
            const Layer& l = layers_[i];
            const bool new_angles = !rope || *rope != l.rope;
            rope = &l.rope;
            team.share(rows, 1, [&](int64_t r, int64_t) {
                if (i > 0) add_normed(layers_[i - 1].post_mlp_norm, gate + r * c.hidden, r);
                norm(hidden + r * c.hidden, l.attn_norm, normed, r);
                if (!new_angles) return;
                for (int64_t j = 0; j < half; ++j) {
                    const float angle = float(a.positions[r]) * l.rope[size_t(j)];
                    angles[r * d + j] = std::cos(angle);
                    angles[r * d + half + j] = std::sin(angle);
                }
            });
            captured(int64_t(i));
            const LinearJob in[3] = {{&l.q.matrix, qkv, qkv_dim, bias_of(l.q), false},
                                     {&l.k.matrix, qkv + q_dim, qkv_dim, bias_of(l.k), false},
                                     {&l.v.matrix, qkv + q_dim + kv_dim, qkv_dim, bias_of(l.v), false}};
            linear(team, k, in, 3, normed);
            team.share(rows, 1, [&](int64_t r, int64_t) {
                float *q = qkv + r * qkv_dim, *key = q + q_dim, *value = key + kv_dim;
                const float *cos = angles + r * d, *sin = cos + half;
                for (float* h = q; h < value; h += d) {
                    const std::vector<float>& weight = h < key ? l.q_norm : l.k_norm;
                    if (!weight.empty()) k.rms_norm(h, weight.data(), d, c.eps, h);
                    k.rotate(h, cos, sin, half);
                }
                k.scale(q, c.attention_scale, q_dim);
                const int64_t at = s.slot_mapping[r] * kv_dim;
                if (cache.half) {
                    k.to_half(key, kv_dim, static_cast<uint16_t*>(cache.keys[i]) + at);
                    k.to_half(value, kv_dim, static_cast<uint16_t*>(cache.values[i]) + at);
                } else {
                    std::copy_n(key, kv_dim, static_cast<float*>(cache.keys[i]) + at);
                    std::copy_n(value, kv_dim, static_cast<float*>(cache.values[i]) + at);
                }
            });
            attention(team, k, a, qkv, qkv_dim, cache.keys[i], cache.values[i], l.window, mixed.x, mixed.ldx, work);
            if (mixed.q) team.share(rows, 1, [&](int64_t r, int64_t) { mixed.quantize(k, r); });
            const bool post_attn = !l.post_attn_norm.empty(), post_mlp = !l.post_mlp_norm.empty();
            const LinearJob o = {&l.o.matrix, post_attn ? gate : hidden, c.hidden, bias_of(l.o), !post_attn};
            linear(team, k, &o, 1, mixed);
            team.share(rows, 1, [&](int64_t r, int64_t) {
                add_normed(l.post_attn_norm, gate + r * c.hidden, r);
                norm(hidden + r * c.hidden, l.mlp_norm, normed, r);
            });
            const LinearJob wide[2] = {{&l.gate.matrix, gate, 2 * c.intermediate, bias_of(l.gate), false},
                                       {&l.up.matrix, gate + c.intermediate, 2 * c.intermediate, bias_of(l.up), false}};
            linear(team, k, wide, 2, normed);
            constexpr int64_t span = 16;  // groups of one task
            const int64_t spans = (mid.groups() + span - 1) / span;
            team.share(rows * spans, 1, [&](int64_t task, int64_t) {
                const int64_t r = task / spans, g0 = task % spans * span, g1 = std::min(mid.groups(), g0 + span);
                const int64_t c0 = g0 * kGroup, c1 = std::min(c.intermediate, g1 * kGroup);
                const float* g = gate + r * 2 * c.intermediate;
                k.act_mul(c.act, g + c0, g + c.intermediate + c0, c1 - c0, mid.x + r * mid.ldx + c0);
                if (mid.q) mid.quantize(k, r, g0, g1);
            });
            const LinearJob down = {&l.down.matrix, post_mlp ? gate : hidden, c.hidden, bias_of(l.down), !post_mlp};
            linear(team, k, &down, 1, mid);
        }
        team.share(rows, 1, [&](int64_t r, int64_t) {
            if (!layers_.empty()) add_normed(layers_.back().post_mlp_norm, gate + r * c.hidden, r);
        });
        captured(num_layers());
        if (s.num_logits == 0) return;
        Rows last = normed;
        last.rows = s.num_logits;
        team.share(s.num_logits, 1, [&](int64_t i, int64_t) {
            norm(hidden + s.logit_rows[i] * c.hidden, final_norm_, last, i);
        });
        const LinearJob head = {&head_.matrix, s.logits, outputs(), bias_of(head_), false};
        linear(team, k, &head, 1, last);
    };
    workers.run(
        [&](Team& team) {
            const auto start = std::chrono::steady_clock::now();  // not the wait for other regions
            pass(team);
            const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
            if (!fixed) choice_.record(s.rows, threads, taken.count());
        },
        threads);
}

}  // namespace outrider
