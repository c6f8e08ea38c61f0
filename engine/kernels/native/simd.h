// Float vectors of the widths this machine has, written once for all of them.
//
// Everything is built with -ffp-contract=off: a product and a sum are fused exactly where fma() is written, so two
// kernels that spell a sum the same way give the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#if defined(__SSE3__)
#include <immintrin.h>
#endif

namespace vox {

template <int W> struct Types;
template <> struct Types<4> {
    typedef float F __attribute__((vector_size(16)));
    typedef float Anywhere __attribute__((vector_size(16), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(16)));
};
template <> struct Types<8> {
    typedef float F __attribute__((vector_size(32)));
    typedef float Anywhere __attribute__((vector_size(32), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(32)));
};
template <> struct Types<16> {
    typedef float F __attribute__((vector_size(64)));
    typedef float Anywhere __attribute__((vector_size(64), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(64)));
};
template <int W> using F = typename Types<W>::F;
template <int W> using I = typename Types<W>::I;

#if defined(__AVX512F__)
constexpr int WIDE = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int WIDE = 8;
#else
constexpr int WIDE = 4;
#endif
constexpr int MEDIUM = WIDE < 8 ? WIDE : 8;  // for vectors whose length is only known to be a multiple of 8

template <int W> inline F<W> splat(float x) {
    if constexpr (W == 4) return F<4>{x, x, x, x};
    else if constexpr (W == 8) return F<8>{x, x, x, x, x, x, x, x};
    else return F<16>{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

// Through a type that may lie anywhere, not through memcpy: taking a register array's address makes gcc 12 keep it in
// memory, and store it in every turn of the loop.
template <int W> inline F<W> load(const float *p) { return *reinterpret_cast<const typename Types<W>::Anywhere *>(p); }

template <int W> inline void store(float *p, F<W> v) { *reinterpret_cast<typename Types<W>::Anywhere *>(p) = v; }

inline float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

inline F<4> fma(F<4> a, F<4> b, F<4> c) {
#if defined(__ARM_NEON)
    return (F<4>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(__FMA__)
    return (F<4>)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#else
    return a * b + c;
#endif
}
#if defined(__AVX2__) && defined(__FMA__)
inline F<8> fma(F<8> a, F<8> b, F<8> c) { return (F<8>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#endif
#if defined(__AVX512F__)
inline F<16> fma(F<16> a, F<16> b, F<16> c) { return (F<16>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#endif

// The sum of all lanes: halves are added until four are left, then pairs. reduce4 keeps the same order.
inline F<4> fold(F<4> v) { return v; }
inline F<4> fold(F<8> v) {
    F<4> low, high;
    std::memcpy(&low, &v, 16);
    std::memcpy(&high, reinterpret_cast<const char *>(&v) + 16, 16);
    return low + high;
}
inline F<4> fold(F<16> v) {
    F<8> low, high;
    std::memcpy(&low, &v, 32);
    std::memcpy(&high, reinterpret_cast<const char *>(&v) + 32, 32);
    return fold(low + high);
}
template <class V> inline float reduce(V v) {
    F<4> f = fold(v);
    return (f[0] + f[1]) + (f[2] + f[3]);
}
inline F<4> reduce4(F<4> a, F<4> b, F<4> c, F<4> d) {
#if defined(__ARM_NEON) && defined(__aarch64__)
    float32x4_t ab = vpaddq_f32((float32x4_t)a, (float32x4_t)b), cd = vpaddq_f32((float32x4_t)c, (float32x4_t)d);
    return (F<4>)vpaddq_f32(ab, cd);
#elif defined(__SSE3__)
    return (F<4>)_mm_hadd_ps(_mm_hadd_ps((__m128)a, (__m128)b), _mm_hadd_ps((__m128)c, (__m128)d));
#else
    return F<4>{reduce(a), reduce(b), reduce(c), reduce(d)};
#endif
}

// e^x for -87.3 <= x <= 88.37, off by at most 1.01 units in the last place (measured at 17 million points); exactly 0
// below (so that -inf weighs nothing), infinity above, NaN for NaN.
template <int W> inline F<W> exp(F<W> x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    I<W> tiny = x < -87.3f;
    F<W> top = splat<W>(88.8f);  // 2^128, which as bits is infinity
    x = x > top ? top : x;
    F<W> shifted = x * 1.44269504f + round;
    F<W> n = shifted - round;
    F<W> r = fma(n, splat<W>(-0.693359375f), x);
    r = fma(n, splat<W>(2.12194440e-4f), r);
    F<W> p = splat<W>(1.9875691500e-4f);
    p = fma(p, r, splat<W>(1.3981999507e-3f));
    p = fma(p, r, splat<W>(8.3334519073e-3f));
    p = fma(p, r, splat<W>(4.1665795894e-2f));
    p = fma(p, r, splat<W>(1.6666665459e-1f));
    p = fma(p, r, splat<W>(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    F<W> power = (F<W>)(((I<W>)shifted << 23) + 0x3f800000);
    return tiny ? F<W>{} : p * power;
}

inline float exp(float x) { return exp<4>(splat<4>(x))[0]; }

// tanh(x) = 1 - 2 / (e^2x + 1): the absolute error stays below 2e-7, which is what a soft cap needs.
template <int W> inline F<W> tanh(F<W> x) { return 1.0f - 2.0f / (exp<W>(x * 2.0f) + 1.0f); }

inline float from_half(uint16_t h) {
#if defined(__ARM_NEON) && defined(__aarch64__)
    __fp16 f;
    std::memcpy(&f, &h, 2);
    return f;
#elif defined(__F16C__)
    return _cvtsh_ss(h);
#else
    uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff, bits;
    if (rest >= 0x7c00) {
        bits = 0x7f800000 | (rest & 0x3ff) << 13;
    } else if (rest >= 0x0400) {
        bits = (rest << 13) + 0x38000000;
    } else {
        float small = float(rest) * 5.9604644775390625e-8f;  // subnormal: multiples of 2^-24
        std::memcpy(&bits, &small, 4);
    }
    bits |= sign;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
#endif
}

template <int W> inline F<W> load_half(const uint16_t *p) {
#if defined(__ARM_NEON) && defined(__aarch64__)
    if constexpr (W == 4) {
        float16x4_t h;
        std::memcpy(&h, p, 8);
        return (F<4>)vcvt_f32_f16(h);
    }
#endif
#if defined(__F16C__)
    if constexpr (W == 8) return (F<8>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
#endif
#if defined(__AVX512F__)
    if constexpr (W == 16) return (F<16>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
#endif
    F<W> v;
    for (int i = 0; i < W; i++) v[i] = from_half(p[i]);
    return v;
}

// bfloat16 as pages and weights hold it.
struct bf16 {
    uint16_t bits;
};

inline float widen(bf16 x) {
    uint32_t wide = uint32_t(x.bits) << 16;
    float f;
    std::memcpy(&f, &wide, 4);
    return f;
}
inline float widen(float x) { return x; }
inline float widen(int8_t x) { return float(x); }

inline bf16 narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return {uint16_t((bits >> 16) | 0x40)};  // NaN stays NaN
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};                 // nearest, ties to even
}

// Spelled out for each machine: from plain conversions gcc 12 builds these vectors lane by lane.
template <int W> inline F<W> load(const bf16 *p) {
#if defined(__ARM_NEON)
    if constexpr (W == 4) return (F<4>)vshll_n_u16(vld1_u16(&p->bits), 16);
#elif defined(__AVX2__)
    if constexpr (W == 4)
        return (F<4>)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))), 16);
    if constexpr (W == 8)
        return (F<8>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))), 16);
#endif
    F<W> v;
    for (int i = 0; i < W; i++) v[i] = widen(p[i]);
    return v;
}

template <int W> inline F<W> load(const int8_t *p) {
#if defined(__ARM_NEON)
    if constexpr (W == 4) {
        int32_t four;
        std::memcpy(&four, p, 4);
        return (F<4>)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
    }
#elif defined(__AVX2__)
    if constexpr (W == 4) {
        int32_t four;
        std::memcpy(&four, p, 4);
        return (F<4>)_mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)));
    }
    if constexpr (W == 8)
        return (F<8>)_mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
#endif
    F<W> v;
    for (int i = 0; i < W; i++) v[i] = float(p[i]);
    return v;
}

// The largest |x|. Magnitudes compare as integers, and NaN as larger than any: a NaN is never lost.
inline float largest_magnitude(const float *x, int64_t n) {
    int32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        std::memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    float largest;
    std::memcpy(&largest, &top, 4);
    return largest;
}

}  // namespace vox
