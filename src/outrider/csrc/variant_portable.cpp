// The portable variant of the kernels, compiled with its own machine flags.
#include "simd_portable.h"
#include "variant_impl.h"

namespace outrider {

const Kernels* portable_kernels() { return table_of<Portable>(); }

}  // namespace outrider
