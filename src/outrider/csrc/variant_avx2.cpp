// The avx2 variant of the kernels, compiled with its own machine flags; absent where the compiler has none of them.
#include "kernels.h"

#if defined(__AVX2__)
#include "simd_avx2.h"

#include "attention_impl.h"
#include "linear_impl.h"
#endif

namespace outrider {

const Kernels* avx2_kernels() {
#if defined(__AVX2__)
    static constexpr Kernels table = [] {
        Kernels k{};
        k.name = "avx2";
        fill_linear<Avx2>(k);
        fill_rows<Avx2>(k);
        fill_attention<Avx2>(k);
        return k;
    }();
    return &table;
#else
    return nullptr;
#endif
}

}  // namespace outrider
