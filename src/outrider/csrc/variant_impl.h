// The whole table of kernels over a SIMD traits type. Included by variants' files alone, each with its own machine flags.
#pragma once

#include "attention_impl.h"
#include "linear_impl.h"

namespace outrider {
namespace {

template <class S>
const Kernels* table_of() {
    static constexpr Kernels table = [] {
        Kernels k{};
        k.name = S::kName;
        fill_linear<S>(k);
        fill_rows<S>(k);
        fill_attention<S>(k);
        return k;
    }();
    return &table;
}

}  // namespace
}  // namespace outrider
