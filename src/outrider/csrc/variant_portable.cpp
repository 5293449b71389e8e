// The portable variant of the kernels, compiled with its own machine flags.
#include "simd_portable.h"

#include "attention_impl.h"
#include "linear_impl.h"

namespace outrider {

const Kernels* portable_kernels() {
    static constexpr Kernels table = [] {
        Kernels k{};
        k.name = "portable";
        fill_linear<Portable>(k);
        fill_rows<Portable>(k);
        fill_attention<Portable>(k);
        return k;
    }();
    return &table;
}

}  // namespace outrider
