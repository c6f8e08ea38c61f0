// Integer dot products of one group: codes of R output rows against int8 activations of NT tokens, 32 inputs long.
//
// Exact on every machine, so the paths differ in speed only. Codes lie as [8 steps][16 rows][4 inputs]; a `Codes` type
// says how a step's bytes are had: as they are, or as nibbles.
#pragma once

#include "simd.h"

namespace vox {

constexpr int GROUP = 32;
constexpr int ROWS = 16;
constexpr int TOKENS = 4;  // tokens of an activation tile

// One group of four tokens' activations: x = code * scale.
struct alignas(64) Activations {
    float scale[TOKENS];
    float sum_scale[TOKENS];  // sum of codes * scale: what a group's minimum is multiplied with
    int32_t sum[TOKENS];
    int32_t unused[TOKENS];
    int8_t codes[TOKENS][GROUP];
};

// 8-bit codes, or 4-bit codes already spread out to bytes.
struct Bytes {
    const uint8_t *data;
};

// 4-bit codes: step s in the low, step s + 4 in the high nibble.
struct Nibbles {
    const uint8_t *data;
};

#if defined(__ARM_FEATURE_DOTPROD)

constexpr int LANES = 4;  // float lanes of a result vector
constexpr int TILE_ROWS = 8;

inline int8x16_t take(Bytes codes, int step, int quad) {
    return vld1q_s8(reinterpret_cast<const int8_t *>(codes.data) + step * 64 + quad * 16);
}
inline int8x16_t take(Nibbles codes, int step, int quad) {
    uint8x16_t both = vld1q_u8(codes.data + (step & 3) * 64 + quad * 16);
    return vreinterpretq_s8_u8(step < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4));
}

// Sums start at the bits of 1.5 * 2^23: seen as a float, the sum then is 1.5 * 2^23 + dot exactly (|dot| < 2^22), and one
// subtraction replaces the conversion, which this family of cores can start only every other cycle.
template <int NT, int R, bool SIGNED, class Codes>
inline void dot(Codes codes, int row, const Activations &x, F<4> (&out)[NT][R / 4]) {
    int32x4_t sums[NT][R / 4];
    for (int t = 0; t < NT; t++)
        for (int r = 0; r < R / 4; r++) sums[t][r] = vdupq_n_s32(0x4b400000);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        int8x16_t input[NT];
        for (int t = 0; t < NT; t++) input[t] = vld1q_s8(x.codes[t] + half * 16);
#define VOX_STEP(LANE)                                                                       \
    for (int r = 0; r < R / 4; r++) {                                                        \
        int8x16_t weight = take(codes, half * 4 + LANE, row / 4 + r);                        \
        for (int t = 0; t < NT; t++) sums[t][r] = vdotq_laneq_s32(sums[t][r], weight, input[t], LANE); \
    }
        VOX_STEP(0)
        VOX_STEP(1)
        VOX_STEP(2)
        VOX_STEP(3)
#undef VOX_STEP
    }
    for (int t = 0; t < NT; t++)
        for (int r = 0; r < R / 4; r++) out[t][r] = (F<4>)vreinterpretq_f32_s32(sums[t][r]) - 12582912.0f;
}

#elif defined(__AVX512VNNI__) && defined(__AVX512F__) && defined(__AVX512BW__)

constexpr int LANES = 16;
constexpr int TILE_ROWS = 16;

inline __m512i take(Bytes codes, int step) { return _mm512_loadu_si512(codes.data + step * 64); }
inline __m512i take(Nibbles codes, int step) {
    __m512i both = _mm512_loadu_si512(codes.data + (step & 3) * 64);
    if (step >= 4) both = _mm512_srli_epi16(both, 4);
    return _mm512_and_si512(both, _mm512_set1_epi8(15));
}

// The instruction takes unsigned times signed: signed codes are moved up by 128, and 128 * sum(x) is taken off again.
template <int NT, int R, bool SIGNED, class Codes>
inline void dot(Codes codes, int, const Activations &x, F<16> (&out)[NT][1]) {
    static_assert(R == 16, "one register holds all rows");
    __m512i sums[NT];
    for (int t = 0; t < NT; t++) sums[t] = SIGNED ? _mm512_set1_epi32(-128 * x.sum[t]) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++) {
        __m512i weight = take(codes, step);
        if (SIGNED) weight = _mm512_xor_si512(weight, _mm512_set1_epi8(-128));
        for (int t = 0; t < NT; t++) {
            int32_t four;
            std::memcpy(&four, x.codes[t] + step * 4, 4);
            sums[t] = _mm512_dpbusd_epi32(sums[t], weight, _mm512_set1_epi32(four));
        }
    }
    for (int t = 0; t < NT; t++) out[t][0] = (F<16>)_mm512_cvtepi32_ps(sums[t]);
}

#elif defined(__AVX2__) && defined(__FMA__)

constexpr int LANES = 8;
constexpr int TILE_ROWS = 8;

inline __m256i take(Bytes codes, int step, int row) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes.data + step * 64 + row * 4));
}
inline __m256i take(Nibbles codes, int step, int row) {
    __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes.data + (step & 3) * 64 + row * 4));
    if (step >= 4) both = _mm256_srli_epi16(both, 4);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// maddubs adds two products in 16 bits. Unsigned codes up to 15 leave room for all eight steps (8 * 2 * 15 * 127 < 2^15);
// signed ones, taken as |w| * (x with w's sign), just fit one step (2 * 128 * 127 < 2^15).
template <int NT, int R, bool SIGNED, class Codes>
inline void dot(Codes codes, int row, const Activations &x, F<8> (&out)[NT][R / 8]) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < R / 8; r++) {
        __m256i sums[NT];
        for (int t = 0; t < NT; t++) sums[t] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int step = 0; step < 8; step++) {
            __m256i weight = take(codes, step, row + r * 8);
            for (int t = 0; t < NT; t++) {
                int32_t four;
                std::memcpy(&four, x.codes[t] + step * 4, 4);
                __m256i input = _mm256_set1_epi32(four);
                if (SIGNED) {
                    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(input, weight));
                    sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs, ones));
                } else {
                    sums[t] = _mm256_add_epi16(sums[t], _mm256_maddubs_epi16(weight, input));
                }
            }
        }
        for (int t = 0; t < NT; t++)
            out[t][r] = (F<8>)_mm256_cvtepi32_ps(SIGNED ? sums[t] : _mm256_madd_epi16(sums[t], ones));
    }
}

#else

constexpr int LANES = 4;
constexpr int TILE_ROWS = 8;

inline int take(Bytes codes, int step, int index) { return static_cast<int8_t>(codes.data[step * 64 + index]); }
inline int take(Nibbles codes, int step, int index) {
    int both = codes.data[(step & 3) * 64 + index];
    return step < 4 ? both & 15 : both >> 4;
}

template <int NT, int R, bool SIGNED, class Codes>
inline void dot(Codes codes, int row, const Activations &x, F<4> (&out)[NT][R / 4]) {
    int32_t sums[NT][R] = {};
    for (int step = 0; step < 8; step++)
        for (int r = 0; r < R; r++)
            for (int k = 0; k < 4; k++) {
                int weight = take(codes, step, (row + r) * 4 + k);
                for (int t = 0; t < NT; t++) sums[t][r] += weight * x.codes[t][step * 4 + k];
            }
    for (int t = 0; t < NT; t++)
        for (int r = 0; r < R; r++) out[t][r / 4][r % 4] = float(sums[t][r]);
}

#endif

}  // namespace vox
