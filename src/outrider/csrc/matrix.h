// A packed weight matrix and what makes one: GGUF blocks kept at their own precision, or float weights quantized.
// Knows nothing about kernels or threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "formats.h"

namespace outrider {

struct PackedMatrix {
    Format format = Format::F32;
    int64_t rows = 0, cols = 0;  // out, in; unpadded
    const uint8_t* data = nullptr;
    std::shared_ptr<const void> owner;  // keeps data alive

    int64_t blocks() const { return (rows + kChannels - 1) / kChannels; }
    int64_t groups() const;       // of an integer format, padding included
    int64_t padded_cols() const;  // columns that are stored
    size_t block_bytes() const;
    size_t bytes() const { return size_t(blocks()) * block_bytes(); }
};

const char* name_of(Format format);
Format format_named(const std::string& name);  // throws std::invalid_argument

// GGUF's tensor types by number; only those with a layout of their own.
bool format_of_gguf(int ggml_type, Format* format);
static constexpr int64_t gguf_row_bytes(Format format, int64_t cols) {
    switch (format) {
        case Format::F32: return cols * 4;
        case Format::BF16: return cols * 2;
        case Format::Q8_0: return cols / 32 * 34;
        case Format::Q4_0: return cols / 32 * 18;
        case Format::Q4_1: return cols / 32 * 20;
        case Format::Q5_0: return cols / 32 * 22;
        case Format::Q5_1: return cols / 32 * 24;
        case Format::Q4_K: return cols / 256 * 144;
        case Format::Q5_K: return cols / 256 * 176;
        default: return cols / 256 * 210;
    }
}

// An uninitialized matrix with memory of its own, aligned to 64 bytes (2 MiB with huge pages asked for when large).
PackedMatrix allocate(Format format, int64_t rows, int64_t cols, uint8_t** data);

// raw: rows of GGUF blocks. order: null, or for each packed row the row of raw that it takes.
PackedMatrix pack_gguf(Format format, const uint8_t* raw, int64_t rows, int64_t cols, const int64_t* order);
// weights [rows, cols] in float32, or bf16 when `bf16`. To f32, bf16, q8_0 (symmetric) or q4_1 (scale and minimum).
// Throws std::invalid_argument naming the first value that is not finite.
PackedMatrix pack_float(Format format, const void* weights, bool bf16, int64_t rows, int64_t cols, const int64_t* order);

// One row as float32.
void unpack_row(const PackedMatrix& matrix, int64_t row, float* out);

}  // namespace outrider
