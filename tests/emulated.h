// Included before a kernel variant where `make emulate` compiles it for AVX2: SIMDe's functions under the intrinsics'
// names, and the few conversions that SIMDe 0.7 lacks, by halves.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cstring>

namespace emulated {

// Both halves of a vector of 512 bits through a function of one half.
template <class Out, class In, class Function>
inline Out by_halves(const In& v, const Function& function) {
    const char* from = reinterpret_cast<const char*>(&v);
    const auto low = function(from), high = function(from + sizeof(In) / 2);
    Out out;
    std::memcpy(&out, &low, 32);
    std::memcpy(reinterpret_cast<char*>(&out) + 32, &high, 32);
    return out;
}

inline __m128i eight_bytes(const char* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
inline __m128i sixteen_bytes(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

inline simde__m512 cvtepi32_ps(simde__m512i v) {
    return by_halves<simde__m512>(v, [](const char* p) {
        return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    });
}
inline simde__m512i cvtepi8_epi32(__m128i v) {
    return by_halves<simde__m512i>(v, [](const char* p) { return _mm256_cvtepi8_epi32(eight_bytes(p)); });
}
inline simde__m512i cvtepu8_epi32(__m128i v) {
    return by_halves<simde__m512i>(v, [](const char* p) { return _mm256_cvtepu8_epi32(eight_bytes(p)); });
}
inline simde__m512 cvtph_ps(__m256i v) {
    return by_halves<simde__m512>(v, [](const char* p) { return _mm256_cvtph_ps(sixteen_bytes(p)); });
}
inline __m256i cvtps_ph(simde__m512 v) {  // to nearest
    __m256 half[2];
    std::memcpy(half, &v, sizeof half);
    __m256i out;
    for (int i = 0; i < 2; ++i) {
        const __m128i low = _mm256_cvtps_ph(half[i], 0);
        std::memcpy(reinterpret_cast<char*>(&out) + 16 * i, &low, 16);
    }
    return out;
}

}  // namespace emulated

#define _mm512_cvtepi32_ps(a) emulated::cvtepi32_ps(a)
#define _mm512_cvtepi8_epi32(a) emulated::cvtepi8_epi32(a)
#define _mm512_cvtepu8_epi32(a) emulated::cvtepu8_epi32(a)
#define _mm512_cvtph_ps(a) emulated::cvtph_ps(a)
#define _mm512_cvtps_ph(a, rounding) emulated::cvtps_ph(a)
#define _mm256_dpbusd_avx_epi32(a, b, c) simde_mm256_dpbusd_epi32(a, b, c)
