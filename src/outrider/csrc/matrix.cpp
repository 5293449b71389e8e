// Packing and unpacking of weight matrices.
#include "matrix.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "thread_pool.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace outrider {
namespace {

constexpr const char* kNames[kNumFormats] = {"f32", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};
constexpr int kGgufTypes[kNumFormats] = {0, 30, 8, 2, 3, 6, 7, 12, 13, 14};

uint16_t read16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

void write16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

// One group of one row: 32 stored codes and its scales, as the packed layout holds them.
struct Group {
    uint8_t code[kGroup];
    uint16_t d = 0, m = 0;        // halves: scale and minimum, or the super-block's
    uint8_t scale = 0, minimum = 0;  // of the K formats
};

// The 6-bit scale and minimum of group j (GGUF's K formats pack eight of each into 12 bytes).
void scale_and_minimum(const uint8_t* s, int j, Group& g) {
    if (j < 4) {
        g.scale = s[j] & 63;
        g.minimum = s[j + 4] & 63;
    } else {
        g.scale = uint8_t((s[j + 4] & 15) | (s[j - 4] >> 6 << 4));
        g.minimum = uint8_t((s[j + 4] >> 4) | (s[j] >> 6 << 4));
    }
}

void nibbles(const uint8_t* q, Group& g) {
    for (int i = 0; i < 16; ++i) {
        g.code[i] = q[i] & 15;
        g.code[i + 16] = q[i] >> 4;
    }
}

void fifth_bits(const uint8_t* q, Group& g) {
    uint32_t high;
    std::memcpy(&high, q, 4);
    for (int i = 0; i < kGroup; ++i) g.code[i] |= uint8_t((high >> i & 1u) << 4);
}

// Group `index` of a row of GGUF blocks. Templates over the format, so that a group costs no decisions.
template <Format format>
void read_gguf(const uint8_t* row, int64_t index, Group& g) {
    const uint8_t* b = row + index * gguf_row_bytes(format, kGroup);
    const int j = int(index % 8);
    switch (format) {
        case Format::Q8_0:
            g.d = read16(b);
            std::memcpy(g.code, b + 2, kGroup);
            return;
        case Format::Q4_0:
            g.d = read16(b);
            return nibbles(b + 2, g);
        case Format::Q4_1:
            g.d = read16(b);
            g.m = read16(b + 2);
            return nibbles(b + 4, g);
        case Format::Q5_0:
            g.d = read16(b);
            nibbles(b + 6, g);
            return fifth_bits(b + 2, g);
        case Format::Q5_1:
            g.d = read16(b);
            g.m = read16(b + 2);
            nibbles(b + 8, g);
            return fifth_bits(b + 4, g);
        case Format::Q4_K:
        case Format::Q5_K: {
            b = row + index / 8 * (format == Format::Q4_K ? 144 : 176);
            g.d = read16(b);
            g.m = read16(b + 2);
            scale_and_minimum(b + 4, j, g);
            const uint8_t* q = b + (format == Format::Q4_K ? 16 : 48) + j / 2 * 32;
            for (int i = 0; i < kGroup; ++i) g.code[i] = j % 2 ? q[i] >> 4 : q[i] & 15;
            if (format == Format::Q5_K)
                for (int i = 0; i < kGroup; ++i) g.code[i] |= uint8_t((b[16 + i] >> j & 1) << 4);
            return;
        }
        default: {  // Q6_K
            b = row + index / 8 * 210;
            const uint8_t *low = b + j / 4 * 64 + j % 2 * 32, *high = b + 128 + j / 4 * 32;
            const int shift = j % 4 / 2 * 4;
            for (int i = 0; i < kGroup; ++i)
                g.code[i] = uint8_t((low[i] >> shift & 15) | (high[i] >> (2 * (j % 4)) & 3) << 4);
            g.scale = b[192 + 2 * j];
            g.minimum = b[193 + 2 * j];  // the scale of columns 16-31
            g.d = read16(b + 208);
            return;
        }
    }
}

// Where group g of a block begins, and its super-block's header.
const uint8_t* group_of(const Layout& layout, const uint8_t* block, int64_t g, const uint8_t** header) {
    *header = block + g / layout.groups_per_super * layout.super();
    return *header + layout.header + g % layout.groups_per_super * layout.group();
}

template <Format format>
void write_group(const Group (&rows)[kChannels], uint8_t* block, int64_t index) {
    constexpr Layout layout = layout_of(format);
    const uint8_t* header_c;
    uint8_t* out = const_cast<uint8_t*>(group_of(layout, block, index, &header_c));
    uint8_t* header = const_cast<uint8_t*>(header_c);
    uint8_t* halves = layout.groups_per_super > 1 ? header : out;
    uint8_t* planes = out + layout.scales;
    for (int c = 0; c < kChannels; ++c) {
        const Group& g = rows[c];
        write16(halves + 2 * c, g.d);
        if (layout.minimum) write16(halves + 32 + 2 * c, g.m);
        if (layout.groups_per_super > 1) {
            out[c] = g.scale;
            out[16 + c] = g.minimum;
        }
        uint32_t word[8];
        std::memcpy(word, g.code, sizeof word);
        const auto put = [planes, c](int plane, uint32_t bits) { std::memcpy(planes + 64 * plane + 4 * c, &bits, 4); };
        if (format == Format::Q8_0) {
            for (int q = 0; q < 8; ++q) put(q, word[q]);
            continue;
        }
        for (int q = 0; q < 8; q += 2) put(q / 2, (word[q] & 0x0f0f0f0fu) | (word[q + 1] & 0x0f0f0f0fu) << 4);
        uint32_t fifth = 0, high[2] = {0, 0};  // of 5 bits the last; of 6 bits the last two, quads 0 to 3 and 4 to 7
        for (int q = 0; q < 8; ++q) {
            fifth |= (word[q] >> 4 & 0x01010101u) << q;
            high[q / 4] |= (word[q] >> 4 & 0x03030303u) << (2 * (q % 4));
        }
        if (layout.planes == 320) put(4, fifth);
        if (layout.planes == 384) put(4, high[0]), put(5, high[1]);
    }
}

bool finite_half(uint16_t h) { return (h & 0x7c00u) != 0x7c00u; }

// Fill all blocks in parallel; read(row, group, Group&) is called for the rows that exist. Throws when a scale is not
// finite.
template <Format format, class Read>
void fill(const PackedMatrix& m, uint8_t* data, const Read& read) {
    std::atomic<int64_t> bad{-1};
    pool().run([&](Team& team) {
        team.share(m.blocks(), 1, [&](int64_t begin, int64_t end) {
            for (int64_t b = begin; b < end; ++b) {
                for (int64_t g = 0; g < m.groups(); ++g) {
                    Group rows[kChannels];
                    for (int c = 0; c < kChannels; ++c) {
                        const int64_t row = b * kChannels + c;
                        // A group past the last column, or a row past the last, is zero whatever the offset.
                        if (row < m.rows && g * kGroup < m.cols)
                            read(row, g, rows[c]);
                        else
                            std::memset(rows[c].code, 0, kGroup);
                        if (!finite_half(rows[c].d) || !finite_half(rows[c].m)) bad.store(row);
                    }
                    write_group<format>(rows, data + size_t(b) * m.block_bytes(), g);
                }
            }
        });
    });
    if (bad.load() >= 0)
        throw std::invalid_argument("row " + std::to_string(bad.load()) +
                                    " of a weight matrix has a scale that is not finite in half precision");
}

void quantize_symmetric(const float* w, Group& g) {
    float top = 0.0f;
    for (int i = 0; i < kGroup; ++i) top = std::fmax(top, std::fabs(w[i]));
    g.d = float_to_half(top / 127.0f);
    const float d = half_to_float(g.d), by = d > 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < kGroup; ++i)
        g.code[i] = uint8_t(int8_t(std::nearbyint(std::fmin(127.0f, std::fmax(-127.0f, w[i] * by)))));
}

void quantize_with_minimum(const float* w, int valid, Group& g) {
    float low = w[0], high = w[0];
    for (int i = 1; i < valid; ++i) low = std::fmin(low, w[i]), high = std::fmax(high, w[i]);
    g.m = float_to_half(low);
    const float m = half_to_float(g.m);
    g.d = float_to_half((high - m) / 15.0f);
    const float d = half_to_float(g.d), by = d > 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < kGroup; ++i)
        g.code[i] = uint8_t(std::nearbyint(std::fmin(15.0f, std::fmax(0.0f, (w[i] - m) * by))));
}

}  // namespace

int64_t PackedMatrix::padded_cols() const {
    if (is_integer(format)) return groups() * kGroup;
    return format == Format::BF16 ? (cols + 1) / 2 * 2 : cols;
}

int64_t PackedMatrix::groups() const {
    const int64_t super = layout_of(format).groups_per_super;
    return (cols + kGroup * super - 1) / (kGroup * super) * super;
}

size_t PackedMatrix::block_bytes() const {
    if (!is_integer(format)) return size_t(padded_cols()) * kChannels * (format == Format::BF16 ? 2 : 4);
    const Layout layout = layout_of(format);
    return size_t(groups() / layout.groups_per_super) * size_t(layout.super());
}

const char* name_of(Format format) { return kNames[int(format)]; }

Format format_named(const std::string& name) {
    for (int i = 0; i < kNumFormats; ++i)
        if (name == kNames[i]) return Format(i);
    throw std::invalid_argument("no packed weight format '" + name +
                                "': f32, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k");
}

bool format_of_gguf(int ggml_type, Format* format) {
    for (int i = 0; i < kNumFormats; ++i) {
        if (kGgufTypes[i] != ggml_type) continue;
        *format = Format(i);
        return true;
    }
    return false;
}

PackedMatrix allocate(Format format, int64_t rows, int64_t cols, uint8_t** data) {
    PackedMatrix m;
    m.format = format;
    m.rows = rows;
    m.cols = cols;
    constexpr size_t huge = size_t(2) << 20;
    const size_t align = m.bytes() >= huge ? huge : 64;
    const size_t bytes = (m.bytes() + align - 1) / align * align;
    void* memory = std::aligned_alloc(align, bytes > 0 ? bytes : align);
    if (!memory) throw std::bad_alloc();
#if defined(__linux__)
    if (align == huge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    m.owner = std::shared_ptr<const void>(memory, [](const void* p) { std::free(const_cast<void*>(p)); });
    m.data = *data = static_cast<uint8_t*>(memory);
    return m;
}

PackedMatrix pack_gguf(Format format, const uint8_t* raw, int64_t rows, int64_t cols, const int64_t* order) {
    if (!is_integer(format)) return pack_float(format, raw, format == Format::BF16, rows, cols, order);
    uint8_t* data;
    const PackedMatrix m = allocate(format, rows, cols, &data);
    const int64_t bytes = gguf_row_bytes(format, cols);
    const auto pack = [&](auto constant) {
        constexpr Format f = decltype(constant)::value;
        fill<f>(m, data, [&](int64_t row, int64_t g, Group& out) {
            read_gguf<f>(raw + (order ? order[row] : row) * bytes, g, out);
        });
    };
    switch (format) {
        case Format::Q8_0: pack(std::integral_constant<Format, Format::Q8_0>()); break;
        case Format::Q4_0: pack(std::integral_constant<Format, Format::Q4_0>()); break;
        case Format::Q4_1: pack(std::integral_constant<Format, Format::Q4_1>()); break;
        case Format::Q5_0: pack(std::integral_constant<Format, Format::Q5_0>()); break;
        case Format::Q5_1: pack(std::integral_constant<Format, Format::Q5_1>()); break;
        case Format::Q4_K: pack(std::integral_constant<Format, Format::Q4_K>()); break;
        case Format::Q5_K: pack(std::integral_constant<Format, Format::Q5_K>()); break;
        default: pack(std::integral_constant<Format, Format::Q6_K>()); break;
    }
    return m;
}

PackedMatrix pack_float(Format format, const void* weights, bool bf16, int64_t rows, int64_t cols, const int64_t* order) {
    if (is_integer(format) && format != Format::Q8_0 && format != Format::Q4_1)
        throw std::invalid_argument(std::string("float weights cannot be packed as ") + name_of(format) +
                                    ": f32, bf16, q8_0 or q4_1");
    std::atomic<int64_t> bad{-1};
    const auto at = [&](int64_t row, int64_t col) {
        const int64_t i = (order ? order[row] : row) * cols + col;
        const float v = bf16 ? bf16_to_float(static_cast<const uint16_t*>(weights)[i]) : static_cast<const float*>(weights)[i];
        if (!std::isfinite(v)) bad.store(i);
        return v;
    };
    uint8_t* data;
    const PackedMatrix m = allocate(format, rows, cols, &data);
    if (is_integer(format)) {
        const auto read = [&](int64_t row, int64_t g, Group& out) {
            float w[kGroup];
            const int valid = int(cols - g * kGroup < kGroup ? cols - g * kGroup : kGroup);
            for (int i = 0; i < kGroup; ++i) w[i] = i < valid ? at(row, g * kGroup + i) : 0.0f;
            if (format == Format::Q8_0)
                quantize_symmetric(w, out);
            else
                quantize_with_minimum(w, valid, out);
        };
        try {
            if (format == Format::Q8_0)
                fill<Format::Q8_0>(m, data, read);
            else
                fill<Format::Q4_1>(m, data, read);
        } catch (const std::invalid_argument&) {
            if (bad.load() < 0) throw;  // a weight beyond what a half can scale
        }
    } else {
        pool().run([&](Team& team) {
            team.share(m.blocks(), 1, [&](int64_t begin, int64_t end) {
                for (int64_t b = begin; b < end; ++b) {
                    uint8_t* block = data + size_t(b) * m.block_bytes();
                    for (int64_t k = 0; k < m.padded_cols(); ++k) {
                        for (int c = 0; c < kChannels; ++c) {
                            const int64_t row = b * kChannels + c;
                            const float v = row < rows && k < cols ? at(row, k) : 0.0f;
                            if (format == Format::BF16)
                                write16(block + 2 * (k / 2 * 32 + 2 * c + k % 2), float_to_bf16(v));
                            else
                                std::memcpy(block + 4 * (k * kChannels + c), &v, 4);
                        }
                    }
                }
            });
        });
    }
    if (bad.load() >= 0) {
        const int64_t i = bad.load();
        const float v = bf16 ? bf16_to_float(static_cast<const uint16_t*>(weights)[i]) : static_cast<const float*>(weights)[i];
        throw std::invalid_argument("weight " + std::to_string(v) + " at row " + std::to_string(i / cols) + ", column " +
                                    std::to_string(i % cols) + " is not finite");
    }
    return m;
}

void unpack_row(const PackedMatrix& m, int64_t row, float* out) {
    const uint8_t* block = m.data + size_t(row / kChannels) * m.block_bytes();
    const int c = int(row % kChannels);
    if (m.format == Format::F32) {
        for (int64_t k = 0; k < m.cols; ++k) std::memcpy(out + k, block + 4 * (k * kChannels + c), 4);
        return;
    }
    if (m.format == Format::BF16) {
        for (int64_t k = 0; k < m.cols; ++k) out[k] = bf16_to_float(read16(block + 2 * (k / 2 * 32 + 2 * c + k % 2)));
        return;
    }
    const Layout layout = layout_of(m.format);
    for (int64_t g = 0; g * kGroup < m.cols; ++g) {
        const uint8_t* header;
        const uint8_t* group = group_of(layout, block, g, &header);
        const uint8_t* halves = layout.groups_per_super > 1 ? header : group;
        const uint8_t* planes = group + layout.scales;
        const float d = half_to_float(read16(halves + 2 * c));
        const float m0 = layout.minimum ? half_to_float(read16(halves + 32 + 2 * c)) : 0.0f;
        const int64_t valid = m.cols - g * kGroup < kGroup ? m.cols - g * kGroup : kGroup;
        for (int i = 0; i < valid; ++i) {
            const int q = i / 4, byte = 4 * c + i % 4;
            int code;
            if (m.format == Format::Q8_0) {
                code = int8_t(planes[64 * q + byte]);
            } else {
                code = planes[64 * (q / 2) + byte] >> (q % 2 * 4) & 15;
                if (layout.planes == 320) code |= (planes[256 + byte] >> q & 1) << 4;
                if (layout.planes == 384) code |= (planes[256 + 64 * (q / 4) + byte] >> (2 * (q % 4)) & 3) << 4;
            }
            float value;
            if (m.format == Format::Q6_K)
                value = d * float(int8_t(group[i < 16 ? c : 16 + c])) * float(code - layout.offset);
            else if (layout.groups_per_super > 1)
                value = d * float(group[c]) * float(code) - m0 * float(group[16 + c]);
            else
                value = d * float(code - layout.offset) + m0;
            out[g * kGroup + i] = value;
        }
    }
}

}  // namespace outrider
