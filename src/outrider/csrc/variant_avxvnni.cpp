// The avxvnni variant of the kernels, compiled with its own machine flags; absent where the compiler has none of them. But
// for linear products its kernels are avx2's.
#include "kernels.h"

#if defined(__AVXVNNI__) || defined(OUTRIDER_EMULATE)
#include "simd_avxvnni.h"

#include "linear_impl.h"
#endif

namespace outrider {

const Kernels* avxvnni_kernels() {
#if defined(__AVXVNNI__) || defined(OUTRIDER_EMULATE)
    static const Kernels table = [] {
        Kernels k = *avx2_kernels();
        k.name = "avxvnni";
        fill_linear<AvxVnni>(k);
        return k;
    }();
    return &table;
#else
    return nullptr;
#endif
}

}  // namespace outrider
