// The avxvnni variant of the kernels, compiled with its own machine flags; absent where the compiler has none of them.
#include "kernels.h"

#if defined(__AVXVNNI__) || defined(OUTRIDER_EMULATE)
#include "simd_avxvnni.h"

#include "attention_impl.h"
#include "linear_impl.h"
#endif

namespace outrider {

const Kernels* avxvnni_kernels() {
#if defined(__AVXVNNI__) || defined(OUTRIDER_EMULATE)
    static constexpr Kernels table = [] {
        Kernels k{};
        k.name = "avxvnni";
        fill_linear<AvxVnni>(k);
        fill_rows<AvxVnni>(k);
        fill_attention<AvxVnni>(k);
        return k;
    }();
    return &table;
#else
    return nullptr;
#endif
}

}  // namespace outrider
