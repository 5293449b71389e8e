// Weight and activation layouts shared by packing and kernels. Knows nothing about threads or Python.
//
// A packed matrix [rows, cols] is a sequence of blocks of 16 output channels. A block is one stream read front to
// back: for every group of 32 columns its scales and then its codes, interleaved so that one 64-byte vector holds
// 4 consecutive columns (a quad) of all 16 channels. Rows are padded to 16 and columns to 32 (256 for the K formats)
// with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

constexpr int kChannels = 16;  // output channels of a block
constexpr int kGroup = 32;     // columns that share a scale, of weights and activations alike
constexpr int kRowTile = 16;   // rows of one activation tile

enum class Format : int { F32, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K };
constexpr int kNumFormats = 10;

// Bytes of one block, in order:
//   Q8_0          per group: d f16[16], 8 quads of s8[16][4]
//   Q4_0, Q4_1    per group: d f16[16], (m f16[16],) 4 x 64 bytes: low nibbles one quad, high nibbles the next
//   Q5_0, Q5_1    the same and 64 bytes whose bit q is the fifth bit of quad q
//   Q4_K, Q5_K    per 8 groups: d f16[16], dmin f16[16]; per group: scale u8[16], minimum u8[16], codes as above
//   Q6_K          per 8 groups: d f16[16]; per group: s8[16] for columns 0-15, s8[16] for 16-31, nibbles, and
//                 2 x 64 bytes whose bits 2j, 2j+1 are bits 4, 5 of quad j (then of quad 4 + j)
//   BF16          per 2 columns: [16][2];   F32: per column: [16]
struct Layout {
    int groups_per_super;  // groups that share a header
    int header;            // bytes before the groups of a super-block
    int scales;            // bytes before the codes of a group
    int planes;            // bytes of codes of a group
    int offset;            // subtracted from the stored code
    bool minimum;          // has a minimum beside the scale
    constexpr int group() const { return scales + planes; }
    constexpr int super() const { return header + groups_per_super * group(); }
};

static constexpr Layout layout_of(Format format) {
    switch (format) {
        case Format::Q8_0: return {1, 0, 32, 512, 0, false};
        case Format::Q4_0: return {1, 0, 32, 256, 8, false};
        case Format::Q4_1: return {1, 0, 64, 256, 0, true};
        case Format::Q5_0: return {1, 0, 32, 320, 16, false};
        case Format::Q5_1: return {1, 0, 64, 320, 0, true};
        case Format::Q4_K: return {8, 64, 32, 256, 0, true};
        case Format::Q5_K: return {8, 64, 32, 320, 0, true};
        case Format::Q6_K: return {8, 32, 32, 384, 32, false};
        default: return {1, 0, 0, 0, 0, false};
    }
}

static constexpr bool is_integer(Format format) { return format != Format::F32 && format != Format::BF16; }

// One group of one row of quantized activations. Rows of a tile lie side by side: record (row r, group g) of a tile of
// n rows is at g * n + r.
struct alignas(16) Activation {
    int8_t code[kGroup];
    float scale;      // x = code * scale
    float sum_scaled; // scale * sum of codes, for minimums
    int32_t sum;      // sum of codes, for offsets
    int16_t half_sum[2];  // of columns 0-15 and 16-31, for Q6_K's two scales
};
static_assert(sizeof(Activation) == 48, "the kernels step by 48 bytes");

static inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t body = uint32_t(h & 0x7fffu) << 13;
    union { uint32_t u; float f; } v, magic;
    if (body >= (0x7c00u << 13)) {
        v.u = body + ((255u - 31u) << 23);
    } else {  // also right for subnormals: rescaled by a product
        v.u = body;
        magic.u = (254u - 15u) << 23;
        v.f *= magic.f;
    }
    v.u |= sign;
    return v.f;
}

// Round to nearest, ties to even; beyond the range an infinity; a NaN stays a NaN.
static inline uint16_t float_to_half(float f) {
    union { uint32_t u; float f; } v;
    v.f = f;
    const uint16_t sign = uint16_t(v.u >> 16 & 0x8000u);
    v.u &= 0x7fffffffu;
    if (v.u >= 0x47800000u) return uint16_t(sign | (v.u > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (v.u < 0x38800000u) {  // subnormal: 0.5 + x has x's rounded bits at its end
        v.f += 0.5f;
        return uint16_t(sign | (v.u - 0x3f000000u));
    }
    return uint16_t(sign | ((v.u + 0xfffu + (v.u >> 13 & 1u) - (112u << 23)) >> 13));
}

static inline float bf16_to_float(uint16_t b) {
    union { uint32_t u; float f; } v;
    v.u = uint32_t(b) << 16;
    return v.f;
}

// Round to nearest, ties to even; a NaN stays a NaN.
static inline uint16_t float_to_bf16(float f) {
    union { uint32_t u; float f; } v;
    v.f = f;
    if ((v.u & 0x7fffffffu) > 0x7f800000u) return uint16_t((v.u >> 16) | 0x40u);
    return uint16_t((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}

}  // namespace outrider
