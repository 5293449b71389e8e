// The avx512 variant of the kernels, compiled with its own machine flags; absent where the compiler has none of them.
#include "kernels.h"

#if defined(__AVX512VNNI__) || defined(OUTRIDER_EMULATE)
#include "simd_avx512.h"
#include "variant_impl.h"
#endif

namespace outrider {

const Kernels* avx512_kernels() {
#if defined(__AVX512VNNI__) || defined(OUTRIDER_EMULATE)
    return table_of<Avx512>();
#else
    return nullptr;
#endif
}

}  // namespace outrider
