// What the binding files share: argument checks that name the offending value, and arrays handed to Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "ops.h"

namespace outrider {

namespace nb = nanobind;

using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats3 = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatsOut3 = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Ints1 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes1 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::c_contig, nb::device::cpu>;              // written to
using ReadArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

template <class... Shape>
nb::ndarray<nb::numpy, float> new_floats(float** data, Shape... shape) {
    const size_t dims[] = {size_t(shape)...};
    size_t count = 1;
    for (size_t n : dims) count *= n;
    float* memory = new float[count > 0 ? count : 1];
    nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    *data = memory;
    return nb::ndarray<nb::numpy, float>(memory, sizeof...(shape), dims, owner);
}

// "float32", "bfloat16" or an error that names what was given. uint16 arrays count as bfloat16 bits.
bool is_bf16(nb::dlpack::dtype type, const char* what);
// The same of "float32" and "float16".
bool is_half(nb::dlpack::dtype type, const char* what);
std::vector<float> padded(const Floats1& values);
void expect_size(const char* what, int64_t given, int64_t wanted);
void set_tree(AttentionBatch& batch, int64_t rows, const std::optional<Ints2>& tree,
              const std::optional<std::vector<int64_t>>& tree_start);

void bind_ops(nb::module_& m);
void bind_model(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_suffix(nb::module_& m);

}  // namespace outrider
