// The avx512 variant of the kernels, compiled with its own machine flags; absent where the compiler has none of them.
#include "kernels.h"

#if defined(__AVX512VNNI__) || defined(OUTRIDER_EMULATE)
#include "simd_avx512.h"

#include "attention_impl.h"
#include "linear_impl.h"
#endif

namespace outrider {

const Kernels* avx512_kernels() {
#if defined(__AVX512VNNI__) || defined(OUTRIDER_EMULATE)
    static constexpr Kernels table = [] {
        Kernels k{};
        k.name = "avx512";
        fill_linear<Avx512>(k);
        fill_rows<Avx512>(k);
        fill_attention<Avx512>(k);
        return k;
    }();
    return &table;
#else
    return nullptr;
#endif
}

}  // namespace outrider
