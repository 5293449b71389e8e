// The avx2 variant of the kernels, compiled with its own machine flags; absent where the compiler has none of them.
#include "kernels.h"

#if defined(__AVX2__)
#include "simd_avx2.h"
#include "variant_impl.h"
#endif

namespace outrider {

const Kernels* avx2_kernels() {
#if defined(__AVX2__)
    return table_of<Avx2>();
#else
    return nullptr;
#endif
}

}  // namespace outrider
