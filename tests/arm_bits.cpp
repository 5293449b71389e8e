// Bits of the portable kernels as numbers on stdout, one line each: `make arm` compares processors by them.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "ops.h"

using namespace outrider;

namespace {

std::mt19937 source(7);

std::vector<float> numbers(int64_t n) {  // from integers, alike on every processor
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = float(int32_t(source() >> 8) - (1 << 23)) / float(1 << 22);
    return v;
}

void print(const char* what, const std::vector<float>& v) {
    uint64_t hash = 14695981039346656037u;
    for (float x : v) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        hash = (hash ^ bits) * 1099511628211u;
    }
    std::printf("%s %016llx\n", what, static_cast<unsigned long long>(hash));
}

void linear_of(const char* what, const PackedMatrix& m, int64_t rows) {
    const Kernels& k = *portable_kernels();
    const std::vector<float> x = numbers(rows * m.cols);
    Buffer floats, records;
    Rows in;
    in.rows = rows;
    in.cols = m.cols;
    in.ldx = row_stride(m.cols);
    in.x = floats.get<float>(rows * in.ldx);
    for (int64_t r = 0; r < rows; ++r) std::memcpy(in.x + r * in.ldx, x.data() + r * m.cols, size_t(m.cols) * 4);
    if (is_integer(m.format)) in.q = records.get<Activation>(rows * in.groups());
    for (int64_t r = 0; r < rows; ++r) in.quantize(k, r);
    std::vector<float> y(size_t(rows * m.rows));
    const LinearJob job = {&m, y.data(), m.rows, nullptr, false};
    pool().run([&](Team& team) { linear(team, k, &job, 1, in); });
    print(what, y);
}

void attention_of() {
    const Kernels& k = *portable_kernels();
    constexpr int64_t places = 160, heads = 4, kv_heads = 2, dim = 24, rows = 3;
    std::vector<uint16_t> keys(places * kv_heads * dim), values(keys.size());
    for (auto* side : {&keys, &values}) k.to_half(numbers(int64_t(side->size())).data(), int64_t(side->size()), side->data());
    const std::vector<float> query = numbers(rows * heads * dim);
    const int64_t positions[rows] = {157, 158, 159};
    std::vector<int64_t> table;
    for (int64_t i = 0; i < places / 16; ++i) table.push_back(places / 16 - 1 - i);
    AttentionBatch b;
    b.rows = rows;
    b.heads = heads;
    b.kv_heads = kv_heads;
    b.head_dim = dim;
    b.half = true;
    b.block_size = 16;
    b.query_start = {0, rows};
    b.seq_lens = {places};
    b.block_tables = table.data();
    b.max_blocks = places / 16;
    b.positions = positions;
    b.plan(pool().threads());
    Buffer work;
    float* memory = work.get<float>(attention_work(b, pool().threads()));
    std::vector<float> out(query.size());
    pool().run([&](Team& team) {
        attention(team, k, b, query.data(), heads * dim, keys.data(), values.data(), 0, out.data(), heads * dim, memory);
    });
    print("attention", out);
}

}  // namespace

int main() {
    set_threads(2);
    const Kernels& k = *portable_kernels();
    const std::vector<float> weights = numbers(37 * 96);
    for (Format f : {Format::F32, Format::BF16, Format::Q8_0, Format::Q4_1})
        linear_of(name_of(f), pack_float(f, weights.data(), false, 37, 96, nullptr), 5);
    for (Format f : {Format::Q4_0, Format::Q5_0, Format::Q5_1, Format::Q4_K, Format::Q5_K, Format::Q6_K}) {
        std::vector<uint8_t> raw(size_t(19 * gguf_row_bytes(f, 512)));
        for (uint8_t& byte : raw) byte = uint8_t(source() >> 8 & 0x3b);  // no scale is an infinity or a NaN
        linear_of(name_of(f), pack_gguf(f, raw.data(), 19, 512, nullptr), 3);
    }
    attention_of();
    std::vector<float> x = numbers(96), y(96), gate = numbers(96);
    k.rms_norm(x.data(), gate.data(), 96, 1e-5f, y.data());
    print("rms_norm", y);
    k.act_mul(Act::Silu, x.data(), gate.data(), 96, y.data());
    print("silu", y);
    k.act_mul(Act::GeluTanh, x.data(), gate.data(), 96, y.data());
    print("gelu", y);
    k.rotate(y.data(), x.data(), gate.data(), 48);
    print("rotate", y);
    return 0;
}
