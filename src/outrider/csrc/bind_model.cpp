// Python bindings of the whole decoder, and the module itself.
#include <cstring>
#include <stdexcept>

#include "bindings.h"
#include "model.h"

namespace outrider {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

using Matrix = std::optional<PackedMatrix>;
using Vector = std::optional<Floats1>;

std::vector<float> plain(const Vector& v) {
    if (!v) return {};
    return std::vector<float>(v->data(), v->data() + v->shape(0));
}

Linear make_linear(const nb::dict& d, const char* name) {
    Linear l;
    if (!d.contains(name)) fail(std::string("a layer lacks its matrix '") + name + "'");
    l.matrix = nb::cast<PackedMatrix>(d[name]);
    const std::string bias = std::string(name) + "_bias";
    if (!d.contains(bias.c_str())) return l;
    const Floats1 values = nb::cast<Floats1>(d[bias.c_str()], false);
    expect_size(bias.c_str(), int64_t(values.shape(0)), l.matrix.rows);
    l.bias = padded(values);
    return l;
}

std::vector<float> vector_of(const nb::dict& d, const char* name, bool required) {
    if (d.contains(name)) return plain(nb::cast<Floats1>(d[name], false));
    if (required) fail(std::string("a layer lacks '") + name + "'");
    return {};
}

Layer make_layer(const nb::dict& d) {
    static const char* known[] = {"q", "k", "v", "o", "gate", "up", "down", "q_bias", "k_bias", "v_bias", "o_bias",
                                  "gate_bias", "up_bias", "down_bias", "attn_norm", "mlp_norm", "q_norm", "k_norm",
                                  "post_attn_norm", "post_mlp_norm", "rope", "window"};
    for (auto [key, value] : d) {
        const std::string name = nb::cast<std::string>(key);
        bool found = false;
        for (const char* k : known) found = found || name == k;
        if (!found) fail("a layer has an unknown entry '" + name + "'");
    }
    Layer l;
    l.q = make_linear(d, "q");
    l.k = make_linear(d, "k");
    l.v = make_linear(d, "v");
    l.o = make_linear(d, "o");
    l.gate = make_linear(d, "gate");
    l.up = make_linear(d, "up");
    l.down = make_linear(d, "down");
    l.attn_norm = vector_of(d, "attn_norm", true);
    l.mlp_norm = vector_of(d, "mlp_norm", true);
    l.q_norm = vector_of(d, "q_norm", false);
    l.k_norm = vector_of(d, "k_norm", false);
    l.post_attn_norm = vector_of(d, "post_attn_norm", false);
    l.post_mlp_norm = vector_of(d, "post_mlp_norm", false);
    l.rope = vector_of(d, "rope", true);
    l.window = d.contains("window") ? nb::cast<int64_t>(d["window"]) : 0;
    return l;
}

// The cache and the arrays that it points into.
struct PyCache {
    Cache cache;
    std::vector<AnyArray> arrays;
};

PyCache make_cache(const std::vector<AnyArray>& keys, const std::vector<AnyArray>& values) {
    PyCache c;
    expect_size("value layers", int64_t(values.size()), int64_t(keys.size()));
    if (keys.empty()) fail("a cache needs at least one layer");
    for (const auto* side : {&keys, &values}) {
        for (const AnyArray& a : *side) {
            if (a.ndim() != 4) fail("a cache layer must be [num_blocks, block_size, kv_heads, head_dim]");
            if (c.arrays.empty()) {
                c.cache.num_blocks = int64_t(a.shape(0));
                c.cache.block_size = int64_t(a.shape(1));
                c.cache.kv_heads = int64_t(a.shape(2));
                c.cache.head_dim = int64_t(a.shape(3));
                c.cache.half = is_half(a.dtype(), "a cache layer");
            }
            const AnyArray& first = c.arrays.empty() ? a : c.arrays.front();
            for (size_t i = 0; i < 4; ++i)
                expect_size("shape of a cache layer", int64_t(a.shape(i)), int64_t(first.shape(i)));
            if (is_half(a.dtype(), "a cache layer") != c.cache.half) fail("cache layers differ in type");
            (side == &keys ? c.cache.keys : c.cache.values).push_back(a.data());
            c.arrays.push_back(a);
        }
    }
    return c;
}

// Move K and V of the rows `from` to the slots `to` in every layer, one after another.
void py_move(const PyCache& c, const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
    const Cache& cache = c.cache;
    expect_size("slots to move to", int64_t(to.size()), int64_t(from.size()));
    const int64_t slots = cache.num_blocks * cache.block_size;
    for (const auto* side : {&from, &to})
        for (int64_t slot : *side)
            if (slot < 0 || slot >= slots)
                fail("slot " + std::to_string(slot) + " is not below " + std::to_string(slots));
    const size_t bytes = size_t(cache.kv_heads * cache.head_dim) * (cache.half ? 2 : 4);
    for (const auto* side : {&cache.keys, &cache.values})
        for (void* layer : *side)
            for (size_t i = 0; i < from.size(); ++i) {
                uint8_t* memory = static_cast<uint8_t*>(layer);
                std::memmove(memory + size_t(to[i]) * bytes, memory + size_t(from[i]) * bytes, bytes);
            }
}

void py_forward(Model& model, const PyCache& cache, const Ints1& token_ids, const Ints1& positions,
                const Ints1& slot_mapping, const std::vector<int64_t>& query_start, const std::vector<int64_t>& seq_lens,
                const Ints2& block_tables, const Ints1& logit_rows, const FloatsOut& logits,
                const std::optional<Ints2>& tree, const std::optional<std::vector<int64_t>>& tree_start,
                const std::vector<int64_t>& capture, const std::optional<FloatsOut3>& hidden) {
    Step s;
    s.rows = int64_t(token_ids.shape(0));
    s.num_logits = int64_t(logit_rows.shape(0));
    expect_size("positions", int64_t(positions.shape(0)), s.rows);
    expect_size("slot_mapping", int64_t(slot_mapping.shape(0)), s.rows);
    expect_size("rows of block_tables", int64_t(block_tables.shape(0)), int64_t(seq_lens.size()));
    expect_size("rows of logits", int64_t(logits.shape(0)), s.num_logits);
    expect_size("columns of logits", int64_t(logits.shape(1)), model.outputs());
    s.token_ids = token_ids.data();
    s.slot_mapping = slot_mapping.data();
    s.logit_rows = logit_rows.data();
    s.logits = logits.data();
    if (capture.empty() == bool(hidden)) fail("capture and hidden come together");
    if (hidden) {
        expect_size("rows of hidden", int64_t(hidden->shape(0)), s.num_logits);
        expect_size("layers of hidden", int64_t(hidden->shape(1)), int64_t(capture.size()));
        expect_size("columns of hidden", int64_t(hidden->shape(2)), model.config().hidden);
        s.capture = capture;
        s.hidden = hidden->data();
    }
    AttentionBatch& a = s.attention;
    a.query_start = query_start;
    a.seq_lens = seq_lens;
    a.block_tables = block_tables.data();
    a.max_blocks = int64_t(block_tables.shape(1));
    a.positions = positions.data();
    set_tree(a, s.rows, tree, tree_start);
    nb::gil_scoped_release release;
    model.forward(s, cache.cache);
}

}  // namespace

void bind_model(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<PyCache>(m, "KVCache").def(
        "__init__",
        [](PyCache* self, const std::vector<AnyArray>& keys, const std::vector<AnyArray>& values) {
            new (self) PyCache(make_cache(keys, values));
        },
        "keys"_a.noconvert(), "values"_a.noconvert())
        .def("move", &py_move, "from_slots"_a, "to_slots"_a);
    nb::class_<Model>(m, "Model")
        .def(
            "__init__",
            [](Model* self, const PackedMatrix& embed, const Matrix& lm_head, const Floats1& final_norm,
               const std::vector<nb::dict>& layers, int64_t heads, int64_t kv_heads, int64_t head_dim, float eps,
               float attention_scale, float embedding_scale, const std::string& act) {
                DecoderConfig c;
                c.hidden = embed.cols;
                c.vocab = embed.rows;
                c.heads = heads;
                c.kv_heads = kv_heads;
                c.head_dim = head_dim;
                c.eps = eps;
                c.attention_scale = attention_scale;
                c.embedding_scale = embedding_scale;
                if (act != "silu" && act != "gelu_tanh") fail("no activation '" + act + "': silu or gelu_tanh");
                c.act = act == "silu" ? Act::Silu : Act::GeluTanh;
                std::vector<Layer> all;
                for (const nb::dict& d : layers) all.push_back(make_layer(d));
                c.intermediate = all.empty() ? 0 : all.front().gate.matrix.rows;
                Linear head;
                head.matrix = lm_head ? *lm_head : embed;
                new (self) Model(c, embed, std::move(head), plain(final_norm), std::move(all));
            },
            "embed"_a, "lm_head"_a.none(), "final_norm"_a.noconvert(), "layers"_a, nb::kw_only(), "heads"_a, "kv_heads"_a,
            "head_dim"_a, "eps"_a, "attention_scale"_a, "embedding_scale"_a = 1.0f, "act"_a = "silu")
        .def_prop_ro("threads", &Model::threads)
        .def("forward", &py_forward, "cache"_a, "token_ids"_a.noconvert(), "positions"_a.noconvert(), "slot_mapping"_a.noconvert(), "query_start"_a,
             "seq_lens"_a, "block_tables"_a.noconvert(), "logit_rows"_a.noconvert(), "logits"_a.noconvert(),
             nb::kw_only(), "tree"_a.noconvert() = nb::none(), "tree_start"_a = nb::none(),
             "capture"_a = std::vector<int64_t>(), "hidden"_a.noconvert() = nb::none());
}

}  // namespace outrider

NB_MODULE(_native, m) {
    m.doc() = "Outrider's processor kernels.";
    outrider::bind_ops(m);
    outrider::bind_model(m);
    outrider::bind_sampling(m);
    outrider::bind_suffix(m);
}
