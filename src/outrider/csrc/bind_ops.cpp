// Python bindings of packing and of the single kernels.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bindings.h"
#include "model.h"
#include "thread_choice.h"

namespace outrider {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

// order: null or for each packed row the source row.
const int64_t* order_of(const std::optional<Ints1>& order, int64_t rows, int64_t source) {
    if (!order) return nullptr;
    expect_size("row order", int64_t(order->shape(0)), rows);
    for (int64_t i = 0; i < rows; ++i)
        if (order->data()[i] < 0 || order->data()[i] >= source)
            fail("row order holds " + std::to_string(order->data()[i]) + ", not below " + std::to_string(source));
    return order->data();
}

PackedMatrix py_pack_gguf(const Bytes1& raw, int type, int64_t rows, int64_t cols, const std::optional<Ints1>& order) {
    Format format;
    if (!format_of_gguf(type, &format)) fail("GGUF tensor type " + std::to_string(type) + " has no packed layout");
    const int64_t unit = layout_of(format).groups_per_super * (is_integer(format) ? kGroup : 1);
    if (rows < 1 || cols < 1 || cols % unit != 0)
        fail("a " + std::string(name_of(format)) + " matrix cannot be [" + std::to_string(rows) + ", " + std::to_string(cols) +
             "]: columns come in " + std::to_string(unit));
    expect_size("bytes of the tensor", int64_t(raw.shape(0)), rows * gguf_row_bytes(format, cols));
    const int64_t* o = order_of(order, rows, rows);
    nb::gil_scoped_release release;
    return pack_gguf(format, raw.data(), rows, cols, o);
}

PackedMatrix py_pack_float(const ReadArray& weights, const std::string& format, const std::optional<Ints1>& order) {
    if (weights.ndim() != 2 || weights.shape(0) < 1 || weights.shape(1) < 1)
        fail("weights must be [rows, cols], not of " + std::to_string(weights.ndim()) + " dimensions or empty");
    const int64_t rows = int64_t(weights.shape(0)), cols = int64_t(weights.shape(1));
    const bool bf16 = is_bf16(weights.dtype(), "weights");
    const Format f = format_named(format);
    const int64_t* o = order_of(order, rows, rows);
    nb::gil_scoped_release release;
    return pack_float(f, weights.data(), bf16, rows, cols, o);
}

PackedMatrix py_from_data(const std::string& format, int64_t rows, int64_t cols, const Bytes1& data) {
    PackedMatrix m;
    m.format = format_named(format);
    m.rows = rows;
    m.cols = cols;
    if (rows < 1 || cols < 1) fail("a matrix cannot be [" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
    expect_size("bytes of the packed matrix", int64_t(data.shape(0)), int64_t(m.bytes()));
    if (reinterpret_cast<uintptr_t>(data.data()) % 4 != 0) fail("packed data must be aligned to 4 bytes");
    m.data = data.data();
    m.owner = std::shared_ptr<const void>(new Bytes1(data), [](const void* p) {
        const nb::gil_scoped_acquire acquire;
        delete static_cast<const Bytes1*>(p);
    });
    return m;
}

nb::ndarray<nb::numpy, float> py_embedding(const PackedMatrix& m, const Ints1& ids) {
    const int64_t n = int64_t(ids.shape(0));
    for (int64_t i = 0; i < n; ++i)
        if (ids.data()[i] < 0 || ids.data()[i] >= m.rows)
            fail("id " + std::to_string(ids.data()[i]) + " is not below " + std::to_string(m.rows));
    float* out;
    auto array = new_floats(&out, n, m.cols);
    nb::gil_scoped_release release;
    pool().run([&](Team& team) {
        team.share(n, 1, [&](int64_t i, int64_t) { unpack_row(m, ids.data()[i], out + i * m.cols); });
    });
    return array;
}

// x [rows, in] times each matrix transposed: a list of [rows, out].
nb::list py_linear(const Floats2& x, const std::vector<PackedMatrix>& matrices,
                   const std::optional<std::vector<std::optional<Floats1>>>& biases) {
    const int64_t rows = int64_t(x.shape(0)), cols = int64_t(x.shape(1));
    if (biases) expect_size("biases", int64_t(biases->size()), int64_t(matrices.size()));
    std::vector<LinearJob> jobs;
    std::vector<std::vector<float>> bias(matrices.size());
    nb::list result;
    bool quantized = false;
    for (size_t i = 0; i < matrices.size(); ++i) {
        const PackedMatrix& m = matrices[i];
        expect_size("columns of x", cols, m.cols);
        quantized = quantized || is_integer(m.format);
        if (biases && (*biases)[i]) {
            expect_size("bias", int64_t((*biases)[i]->shape(0)), m.rows);
            bias[i] = padded(*(*biases)[i]);
        }
        float* y;
        result.append(new_floats(&y, rows, m.rows));
        jobs.push_back({&m, y, m.rows, bias[i].empty() ? nullptr : bias[i].data(), false});
    }
    nb::gil_scoped_release release;
    Buffer copy, records;
    Rows in;
    in.rows = rows;
    in.cols = cols;
    in.ldx = row_stride(cols);
    in.x = copy.get<float>(rows * in.ldx);
    for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(x.data() + r * cols, cols, in.x + r * in.ldx);
        in.x[r * in.ldx + cols] = 0.0f;  // bf16 weights are read in pairs
    }
    if (quantized) in.q = records.get<Activation>(rows * in.groups());
    const Kernels& k = kernels();
    if (rows > 0 && !jobs.empty())
        pool().run([&](Team& team) {
            if (quantized) team.share(rows, 1, [&](int64_t r, int64_t) { in.quantize(k, r); });
            linear(team, k, jobs.data(), int(jobs.size()), in);
        });
    return result;
}

nb::ndarray<nb::numpy, float> py_rms_norm(const Floats2& x, const Floats1& weight, float eps) {
    const int64_t rows = int64_t(x.shape(0)), n = int64_t(x.shape(1));
    expect_size("norm weight", int64_t(weight.shape(0)), n);
    float* y;
    auto out = new_floats(&y, rows, n);
    nb::gil_scoped_release release;
    for (int64_t r = 0; r < rows; ++r) kernels().rms_norm(x.data() + r * n, weight.data(), n, eps, y + r * n);
    return out;
}

nb::ndarray<nb::numpy, float> py_act_mul(const Floats2& gate_up, const std::string& act) {
    const int64_t rows = int64_t(gate_up.shape(0)), n = int64_t(gate_up.shape(1)) / 2;
    if (gate_up.shape(1) % 2 != 0) fail("gate and up need an even number of columns, not " + std::to_string(gate_up.shape(1)));
    if (act != "silu" && act != "gelu_tanh") fail("no activation '" + act + "': silu or gelu_tanh");
    const Act a = act == "silu" ? Act::Silu : Act::GeluTanh;
    float* y;
    auto out = new_floats(&y, rows, n);
    nb::gil_scoped_release release;
    for (int64_t r = 0; r < rows; ++r)
        kernels().act_mul(a, gate_up.data() + 2 * r * n, gate_up.data() + 2 * r * n + n, n, y + r * n);
    return out;
}

// x [rows, heads, head_dim] rotated; cos and sin [rows, head_dim / 2].
nb::ndarray<nb::numpy, float> py_rotary(const Floats3& x, const Floats2& cos, const Floats2& sin) {
    const int64_t rows = int64_t(x.shape(0)), heads = int64_t(x.shape(1)), d = int64_t(x.shape(2));
    if (d % 2 != 0) fail("head_dim " + std::to_string(d) + " is not even");
    for (const Floats2* t : {&cos, &sin}) {
        expect_size("rows of the rotary table", int64_t(t->shape(0)), rows);
        expect_size("columns of the rotary table", int64_t(t->shape(1)), d / 2);
    }
    float* y;
    auto out = new_floats(&y, rows, heads, d);
    nb::gil_scoped_release release;
    std::copy_n(x.data(), rows * heads * d, y);
    for (int64_t i = 0; i < rows * heads; ++i)
        kernels().rotate(y + i * d, cos.data() + i / heads * (d / 2), sin.data() + i / heads * (d / 2), d / 2);
    return out;
}

// Per row of x [rows, n]: the lowest index of the largest value (a NaN's, if there is one), and that value.
nb::tuple py_argmax(const Floats2& x) {
    const int64_t rows = int64_t(x.shape(0)), n = int64_t(x.shape(1));
    if (n < 1) fail("argmax needs at least one column");
    float* values;
    auto out = new_floats(&values, rows);
    std::vector<int64_t> ids(size_t(rows), 0);
    {
        nb::gil_scoped_release release;
        const Kernels& k = kernels();
        pool().run([&](Team& team) {
            team.share(rows, 1, [&](int64_t r, int64_t) { k.argmax(x.data() + r * n, n, &ids[size_t(r)], values + r); });
        });
    }
    return nb::make_tuple(ids, out);
}

// For each group of rows [rows, n], of any sizes: the ids as argmax gives them, none where a row's largest is not finite.
nb::ndarray<nb::numpy, float> py_log_sum_exp(const Floats2& x) {
    const int64_t rows = int64_t(x.shape(0)), n = int64_t(x.shape(1));
    if (n < 1) fail("log_sum_exp needs at least one column");
    float* y;
    auto out = new_floats(&y, rows);
    nb::gil_scoped_release release;
    const Kernels& k = kernels();
    pool().run([&](Team& team) {
        team.share(rows, 1, [&](int64_t r, int64_t) { y[r] = k.log_sum_exp(x.data() + r * n, n); });
    });
    return out;
}

// query [rows, heads, head_dim], not scaled; caches [num_blocks, block_size, kv_heads, head_dim].
nb::ndarray<nb::numpy, float> py_attention(const Floats3& query, const ReadArray& keys, const ReadArray& values,
                                           const Ints2& block_tables, const std::vector<int64_t>& query_start,
                                           const std::vector<int64_t>& seq_lens, const Ints1& positions, float scale,
                                           int64_t window, const std::optional<Ints2>& tree, const std::optional<std::vector<int64_t>>& tree_start) {
    AttentionBatch b;
    b.rows = int64_t(query.shape(0));
    b.heads = int64_t(query.shape(1));
    b.head_dim = int64_t(query.shape(2));
    if (keys.ndim() != 4 || values.ndim() != 4) fail("caches must be [num_blocks, block_size, kv_heads, head_dim]");
    for (size_t i = 0; i < 4; ++i) expect_size("shape of the value cache", int64_t(values.shape(i)), int64_t(keys.shape(i)));
    b.block_size = int64_t(keys.shape(1));
    b.kv_heads = int64_t(keys.shape(2));
    expect_size("head_dim of the cache", int64_t(keys.shape(3)), b.head_dim);
    if (b.kv_heads < 1 || b.heads % b.kv_heads != 0)
        fail(std::to_string(b.heads) + " query heads cannot be shared by " + std::to_string(b.kv_heads) + " KV heads");
    b.half = is_half(keys.dtype(), "keys");
    if (is_half(values.dtype(), "values") != b.half) fail("keys and values differ in type");
    b.query_start = query_start;
    b.seq_lens = seq_lens;
    expect_size("rows of block_tables", int64_t(block_tables.shape(0)), int64_t(seq_lens.size()));
    b.block_tables = block_tables.data();
    b.max_blocks = int64_t(block_tables.shape(1));
    expect_size("positions", int64_t(positions.shape(0)), b.rows);
    b.positions = positions.data();
    set_tree(b, b.rows, tree, tree_start);
    check_requests(b, b.rows, int64_t(keys.shape(0)));
    float* y;
    auto out = new_floats(&y, b.rows, b.heads, b.head_dim);
    nb::gil_scoped_release release;
    ThreadPool& threads = pool();
    const Kernels& k = kernels();
    b.plan(threads.threads());
    Buffer q, work;
    const int64_t width = b.heads * b.head_dim;
    float* scaled = q.get<float>(b.rows * width);
    std::copy_n(query.data(), b.rows * width, scaled);
    for (int64_t r = 0; r < b.rows; ++r) k.scale(scaled + r * width, scale, width);
    float* memory = work.get<float>(attention_work(b, threads.threads()));
    threads.run([&](Team& team) {
        attention(team, k, b, scaled, width, keys.data(), values.data(), window, y, width, memory);
    });
    return out;
}

// The place after `count` strings of a GGUF file from `at` on, each a 64-bit length and its bytes. Strings that reach
// beyond the data end it.
uint64_t py_skip_strings(const Bytes1& data, uint64_t at, uint64_t count) {
    const uint64_t size = data.shape(0);
    for (; count > 0 && at <= size && size - at >= 8; --count) {
        uint64_t length;
        std::memcpy(&length, data.data() + at, 8);
        at += 8;
        if (length > size - at) return size + 1;
        at += length;
    }
    return count > 0 ? size + 1 : at;
}

uint64_t py_read_all(const Bytes1& data) {
    nb::gil_scoped_release release;
    return read_all(data.data(), int64_t(data.shape(0)));
}

}  // namespace

bool is_bf16(nb::dlpack::dtype type, const char* what) {
    if (type == nb::dtype<float>()) return false;
    if (type == nb::dtype<uint16_t>()) return true;
    if (type.code == uint8_t(nb::dlpack::dtype_code::Bfloat) && type.bits == 16 && type.lanes == 1) return true;
    fail(std::string(what) + " must be float32, bfloat16 or uint16 (bfloat16 bits), not type code " +
         std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits");
}

bool is_half(nb::dlpack::dtype type, const char* what) {
    if (type == nb::dtype<float>()) return false;
    if (type.code == uint8_t(nb::dlpack::dtype_code::Float) && type.bits == 16 && type.lanes == 1) return true;
    fail(std::string(what) + " must be float32 or float16, not type code " + std::to_string(type.code) + " of " +
         std::to_string(type.bits) + " bits");
}

std::vector<float> padded(const Floats1& values) {
    const size_t n = values.shape(0);
    std::vector<float> out((n + kChannels - 1) / kChannels * kChannels, 0.0f);
    std::copy_n(values.data(), n, out.data());
    return out;
}

void expect_size(const char* what, int64_t given, int64_t wanted) {
    if (given != wanted) fail(std::string(what) + ": " + std::to_string(given) + ", expected " + std::to_string(wanted));
}

void set_tree(AttentionBatch& batch, int64_t rows, const std::optional<Ints2>& tree,
              const std::optional<std::vector<int64_t>>& tree_start) {
    if (bool(tree) != bool(tree_start)) fail("tree and tree_start come together");
    if (!tree) return;
    expect_size("rows of tree", int64_t(tree->shape(0)), rows);
    batch.tree = tree->data();
    batch.tree_depth = int64_t(tree->shape(1));
    batch.tree_start = *tree_start;
}

void bind_ops(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def_prop_ro("format", [](const PackedMatrix& p) { return std::string(name_of(p.format)); })
        .def_ro("rows", &PackedMatrix::rows)
        .def_ro("cols", &PackedMatrix::cols)
        .def_prop_ro("nbytes", &PackedMatrix::bytes)
        .def_prop_ro(
            "data",
            [](nb::handle_t<PackedMatrix> self) {
                const PackedMatrix& p = nb::cast<const PackedMatrix&>(self);
                const size_t shape[1] = {p.bytes()};
                return nb::ndarray<nb::numpy, const uint8_t>(p.data, 1, shape, self);
            })
        .def_static("from_data", &py_from_data, "format"_a, "rows"_a, "cols"_a, "data"_a.noconvert());
    m.def("pack_gguf", &py_pack_gguf, "raw"_a.noconvert(), "ggml_type"_a, "rows"_a, "cols"_a, "order"_a.noconvert() = nb::none());
    m.def("pack_float", &py_pack_float, "weights"_a.noconvert(), "format"_a, "order"_a.noconvert() = nb::none());
    m.def("embedding", &py_embedding, "matrix"_a, "ids"_a.noconvert());
    m.def("linear", &py_linear, "x"_a.noconvert(), "matrices"_a, "biases"_a.noconvert() = nb::none());
    m.def("rms_norm", &py_rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a);
    m.def("act_mul", &py_act_mul, "gate_up"_a.noconvert(), "act"_a);
    m.def("rotary", &py_rotary, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert());
    m.def("argmax", &py_argmax, "x"_a.noconvert());
    m.def("log_sum_exp", &py_log_sum_exp, "x"_a.noconvert());
    m.def("attention", &py_attention, "query"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), "block_tables"_a.noconvert(), "query_start"_a, "seq_lens"_a,
          "positions"_a.noconvert(), "scale"_a, "window"_a = 0, "tree"_a.noconvert() = nb::none(), "tree_start"_a = nb::none());
    m.def("skip_strings", &py_skip_strings, "data"_a.noconvert(), "at"_a, "count"_a);
    m.def("read_all", &py_read_all, "data"_a.noconvert());
    m.def("num_threads", [] { return pool().threads(); });
    m.def(
        "set_num_threads",
        [](int n, bool fixed) {
            if (n < 1) fail("the number of threads must be at least 1, not " + std::to_string(n));
            set_threads(n, fixed);
        },
        "threads"_a, "fixed"_a = false);
    m.def(
        "set_default_threads",
        [](int n) {
            if (n < 1) fail("the number of threads must be at least 1, not " + std::to_string(n));
            set_default_threads(n);
        },
        "threads"_a);
    nb::class_<ThreadChoice>(m, "ThreadChoice")
        .def(nb::init<>())
        .def("choose", &ThreadChoice::choose, "rows"_a, "limit"_a)
        .def("record", &ThreadChoice::record, "rows"_a, "threads"_a, "seconds"_a)
        .def_prop_ro("threads", &ThreadChoice::threads);
    m.def("variant", [] { return std::string(kernels().name); });
    m.def("set_variant", &set_variant, "name"_a);
    m.def("available_variants", &available_variants);
}

}  // namespace outrider
