// Integer dot products of one group: codes of R output rows against int8 activations of NT tokens, 32 inputs long.
//
// Exact on every machine, so the paths differ in speed only. Codes lie as [8 steps][16 rows][4 inputs]. The result is
// dot(code - zero, x), where `zero` is the code that stands for nothing: 0 if the format has minimums, else its middle.
#pragma once

#include "simd.h"

namespace vox {

constexpr int GROUP = 32;
constexpr int ROWS = 16;

// Bytes by which codes are asked for before they are needed: a tenth more from memory on a Xeon, where the processor's own
// prefetching ends at each page. Not measured on ARM.
#if defined(__x86_64__)
constexpr int64_t AHEAD = 4096;
#else
constexpr int64_t AHEAD = 0;
#endif

// One group of N tokens' activations: x = code * scale.
template <int N> struct Activations {
    int8_t codes[N][GROUP];
    float scale[N];
    float sum_scale[N];  // sum of codes * scale: what a group's minimum is multiplied with
    int32_t start[N];  // sum of codes * -128: where a dot product with codes begins whose zero is 128
    int32_t low_start[N];  // the same of the first 16 codes
};

// Where a token's dot product over the steps [FIRST, LAST), all or one half, begins with codes that have this zero.
template <int ZERO, int FIRST, int LAST, int N> inline int32_t start_of(const Activations<N> &x, int token) {
    static_assert(FIRST % 4 == 0 && LAST % 4 == 0 && FIRST < LAST, "steps are taken whole or by halves");
    if constexpr (ZERO == 0) return 0;
    int32_t start = LAST - FIRST == 8 ? x.start[token] : x.low_start[token];
    if (FIRST != 0) start = x.start[token] - start;
    return start / (128 / (ZERO ? ZERO : 1));
}

// Codes of so many bits as they are stored: 4 bits put step s in the low and step s + 4 in the high nibble of byte
// [s % 4][row][input]; 64 bytes after those hold the fifth bits, step s in bit s; with 6 bits there are two times 64, steps
// 0 to 3 and 4 to 7, two bits each. 8 bits are int8.
template <int BITS_> struct Stored {
    static constexpr int BITS = BITS_;
    static constexpr int64_t BYTES = BITS * ROWS * GROUP / 8;
    const uint8_t *data;
};

// One code as a number, by its step and its place [row][input] in it.
template <int BITS> inline int code_at(Stored<BITS> codes, int step, int index) {
    if constexpr (BITS == 8) return static_cast<int8_t>(codes.data[step * 64 + index]);
    int both = codes.data[(step & 3) * 64 + index], code = step < 4 ? both & 15 : both >> 4;
    if constexpr (BITS == 5) code |= (codes.data[256 + index] >> step & 1) << 4;
    if constexpr (BITS == 6) code |= (codes.data[256 + (step >> 2) * 64 + index] >> 2 * (step & 3) & 3) << 4;
    return code;
}

// Codes of so many bits spread out to a byte each, and moved so that their zero is where the instructions want it.
template <int BITS_> struct Spread {
    static constexpr int BITS = BITS_;
    static constexpr int64_t BYTES = ROWS * GROUP;
    const uint8_t *data;
};

#if defined(__ARM_FEATURE_DOTPROD)

constexpr int LANES = 4;      // float lanes of a result vector
constexpr int TILE_ROWS = 8;  // rows whose sums are in registers at a time
constexpr int TILES = 1;      // tiles of 16 rows, of spread codes, whose sums are in registers at a time
constexpr int FEW = 4;        // up to so many tokens make one tile, with codes as they are stored

// The instruction takes signed bytes: what is spread is moved so that zero is 0.
constexpr int spread_bits(int) { return 8; }
template <int BITS> constexpr int zero(Stored<BITS>, bool minimum) { return minimum || BITS == 8 ? 0 : 1 << (BITS - 1); }
template <int BITS> constexpr int zero(Spread<BITS>, bool) { return 0; }

template <int BITS> inline int8x16_t take(Spread<BITS> codes, int step, int quad) {
    return vld1q_s8(reinterpret_cast<const int8_t *>(codes.data) + step * 64 + quad * 16);
}
template <int BITS> inline int8x16_t take(Stored<BITS> codes, int step, int quad) {
    if constexpr (BITS == 8) return take(Spread<8>{codes.data}, step, quad);
    uint8x16_t both = vld1q_u8(codes.data + (step & 3) * 64 + quad * 16);
    uint8x16_t code = step < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
    if constexpr (BITS == 5) {
        uint8x16_t high = vshlq_u8(vld1q_u8(codes.data + 256 + quad * 16), vdupq_n_s8(int8_t(4 - step)));
        code = vorrq_u8(code, vandq_u8(high, vdupq_n_u8(16)));
    }
    if constexpr (BITS == 6) {
        const uint8_t *plane = codes.data + 256 + (step >> 2) * 64 + quad * 16;
        uint8x16_t high = vshlq_u8(vld1q_u8(plane), vdupq_n_s8(int8_t(4 - 2 * (step & 3))));
        code = vorrq_u8(code, vandq_u8(high, vdupq_n_u8(48)));
    }
    return vreinterpretq_s8_u8(code);
}

template <int BITS> inline void spread(Stored<BITS> codes, uint8_t *to, int shift) {
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++)
        for (int quad = 0; quad < 4; quad++)
            vst1q_s8(reinterpret_cast<int8_t *>(to) + step * 64 + quad * 16,
                     vaddq_s8(take(codes, step, quad), vdupq_n_s8(int8_t(shift))));
}

// Sums start at the bits of 1.5 * 2^23: seen as a float, the sum then is 1.5 * 2^23 + dot exactly (|dot| < 2^22), and one
// subtraction replaces the conversion, which this family of cores can start only every other cycle.
template <int NT, int R, int TILES, int ZERO, int FIRST, int LAST, class Codes>
inline void dot(Codes codes, int64_t, int row, const Activations<NT> &x, F<4> (&out)[NT][R / 4]) {
    static_assert(TILES == 1, "registers are few");
    int32x4_t sums[NT][R / 4];
    for (int t = 0; t < NT; t++)
        for (int r = 0; r < R / 4; r++) sums[t][r] = vdupq_n_s32(0x4b400000 + start_of<ZERO, FIRST, LAST>(x, t));
#pragma GCC unroll 2
    for (int half = FIRST / 4; half < LAST / 4; half++) {
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
constexpr int TILES = 3;
constexpr int FEW = 8;

// The instruction takes unsigned times signed bytes: signed codes, and what is spread, are moved up so that zero is 128.
constexpr int spread_bits(int) { return 8; }
template <int BITS> constexpr int zero(Stored<BITS>, bool minimum) { return minimum ? 0 : 1 << (BITS - 1); }
template <int BITS> constexpr int zero(Spread<BITS>, bool minimum) { return minimum ? 0 : 128; }

template <int BITS> inline __m512i take(Spread<BITS> codes, int step) { return _mm512_loadu_si512(codes.data + step * 64); }
template <int BITS> inline __m512i take(Stored<BITS> codes, int step) {
    if constexpr (BITS == 8) return _mm512_xor_si512(_mm512_loadu_si512(codes.data + step * 64), _mm512_set1_epi8(-128));
    __m512i both = _mm512_loadu_si512(codes.data + (step & 3) * 64);
    if (step >= 4) both = _mm512_srli_epi16(both, 4);
    __m512i code = _mm512_and_si512(both, _mm512_set1_epi8(15));
    if constexpr (BITS == 4) return code;
    __m512i high = _mm512_loadu_si512(codes.data + 256 + (BITS == 6 ? (step >> 2) * 64 : 0));
    int left = BITS == 6 ? 4 - 2 * (step & 3) : 4 - step;
    if (left > 0) high = _mm512_slli_epi16(high, left);
    if (left < 0) high = _mm512_srli_epi16(high, -left);
    return _mm512_ternarylogic_epi32(code, high, _mm512_set1_epi8(BITS == 6 ? 48 : 16), 0xf8);  // code | (high & mask)
}

template <int BITS> inline void spread(Stored<BITS> codes, uint8_t *to, int shift) {
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++)
        _mm512_storeu_si512(to + step * 64, _mm512_add_epi8(take(codes, step), _mm512_set1_epi8(char(shift))));
}

// A number of memory in every lane, divided by a power of two: the load does the spreading, so no port is taken for it.
template <int ZERO, int FIRST, int LAST, int N> inline __m512i starts_of(const Activations<N> &x, int token) {
    constexpr int SHIFT = ZERO == 128 ? 0 : ZERO == 32 ? 2 : ZERO == 16 ? 3 : 4;
    if constexpr (ZERO == 0) return _mm512_setzero_si512();
    __m512i start = _mm512_set1_epi32(LAST - FIRST == 8 ? x.start[token] : x.low_start[token]);
    if (FIRST != 0) start = _mm512_sub_epi32(_mm512_set1_epi32(x.start[token]), start);
    return SHIFT ? _mm512_srai_epi32(start, SHIFT) : start;
}

template <int NT, int R, int TILES, int ZERO, int FIRST, int LAST, class Codes>
inline void dot(Codes codes, int64_t next_tile, int, const Activations<NT> &x, F<16> (&out)[NT][TILES]) {
    static_assert(R == 16, "one register holds all rows");
    __m512i sums[NT][TILES];
    for (int t = 0; t < NT; t++)
        for (int r = 0; r < TILES; r++) sums[t][r] = starts_of<ZERO, FIRST, LAST>(x, t);
#pragma GCC unroll 8
    for (int step = FIRST; step < LAST; step++) {
        __m512i weight[TILES];
        for (int r = 0; r < TILES; r++) weight[r] = take(Codes{codes.data + r * next_tile}, step);
        for (int t = 0; t < NT; t++) {
            int32_t four;
            std::memcpy(&four, x.codes[t] + step * 4, 4);
            __m512i input = _mm512_set1_epi32(four);
            if (TILES > 1) asm("" : "+v"(input));  // loaded once, not once a tile
            for (int r = 0; r < TILES; r++) sums[t][r] = _mm512_dpbusd_epi32(sums[t][r], weight[r], input);
        }
    }
    for (int t = 0; t < NT; t++)
        for (int r = 0; r < TILES; r++) out[t][r] = (F<16>)_mm512_cvtepi32_ps(sums[t][r]);
}

#elif defined(__AVX2__) && defined(__FMA__)

constexpr int LANES = 8;
constexpr int TILE_ROWS = 8;
constexpr int TILES = 1;
constexpr int FEW = 4;

constexpr int spread_bits(int bits) { return bits; }
template <int BITS> constexpr int zero(Stored<BITS>, bool minimum) { return minimum || BITS == 8 ? 0 : 1 << (BITS - 1); }
template <int BITS> constexpr int zero(Spread<BITS>, bool minimum) { return zero(Stored<BITS>{}, minimum); }

template <int BITS> inline __m256i take(Spread<BITS> codes, int step, int row) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes.data + step * 64 + row * 4));
}
template <int BITS> inline __m256i take(Stored<BITS> codes, int step, int row) {
    if constexpr (BITS == 8) return take(Spread<8>{codes.data}, step, row);
    __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes.data + (step & 3) * 64 + row * 4));
    if (step >= 4) both = _mm256_srli_epi16(both, 4);
    __m256i code = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if constexpr (BITS == 4) return code;
    const uint8_t *plane = codes.data + 256 + (BITS == 6 ? (step >> 2) * 64 : 0) + row * 4;
    __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(plane));
    int left = BITS == 6 ? 4 - 2 * (step & 3) : 4 - step;
    high = left < 0 ? _mm256_srli_epi16(high, -left) : _mm256_slli_epi16(high, left);
    return _mm256_or_si256(code, _mm256_and_si256(high, _mm256_set1_epi8(BITS == 6 ? 48 : 16)));
}

template <int BITS> inline void spread(Stored<BITS> codes, uint8_t *to, int) {
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++)
        for (int row = 0; row < ROWS; row += 8)
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + step * 64 + row * 4), take(codes, step, row));
}

// maddubs adds two products in 16 bits. Unsigned codes leave room for more steps before they are widened: 4 bits for eight
// (8 * 2 * 15 * 127 < 2^15), 5 bits for four, 6 bits for two. Signed ones, taken as |w| * (x with w's sign), just fit one
// step (2 * 128 * 127 < 2^15).
constexpr int room(int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }

template <int NT, int R, int TILES, int ZERO, int FIRST, int LAST, class Codes>
inline void dot(Codes codes, int64_t, int row, const Activations<NT> &x, F<8> (&out)[NT][R / 8]) {
    static_assert(TILES == 1, "registers are few");
    constexpr int ROOM = room(Codes::BITS) < LAST - FIRST ? room(Codes::BITS) : LAST - FIRST;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < R / 8; r++) {
        __m256i sums[NT], pairs[NT];
        for (int t = 0; t < NT; t++) sums[t] = _mm256_set1_epi32(start_of<ZERO, FIRST, LAST>(x, t));
#pragma GCC unroll 8
        for (int step = FIRST; step < LAST; step++) {
            __m256i weight = take(codes, step, row + r * 8);
            for (int t = 0; t < NT; t++) {
                int32_t four;
                std::memcpy(&four, x.codes[t] + step * 4, 4);
                __m256i input = _mm256_set1_epi32(four), pair;
                if (Codes::BITS == 8)
                    pair = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(input, weight));
                else
                    pair = _mm256_maddubs_epi16(weight, input);
                pairs[t] = step % ROOM ? _mm256_add_epi16(pairs[t], pair) : pair;
                if (step % ROOM == ROOM - 1) sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs[t], ones));
            }
        }
        for (int t = 0; t < NT; t++) out[t][r] = (F<8>)_mm256_cvtepi32_ps(sums[t]);
    }
}

#else

constexpr int LANES = 4;
constexpr int TILE_ROWS = 8;
constexpr int TILES = 1;
constexpr int FEW = 4;

constexpr int spread_bits(int) { return 8; }
template <int BITS> constexpr int zero(Stored<BITS>, bool minimum) { return minimum || BITS == 8 ? 0 : 1 << (BITS - 1); }
template <int BITS> constexpr int zero(Spread<BITS>, bool) { return 0; }

template <int BITS> inline int take(Spread<BITS> codes, int step, int index) {
    return static_cast<int8_t>(codes.data[step * 64 + index]);
}
template <int BITS> inline int take(Stored<BITS> codes, int step, int index) { return code_at(codes, step, index); }
template <int BITS> inline void spread(Stored<BITS> codes, uint8_t *to, int shift) {
    for (int step = 0; step < 8; step++)
        for (int index = 0; index < 64; index++) to[step * 64 + index] = uint8_t(code_at(codes, step, index) + shift);
}

template <int NT, int R, int TILES, int ZERO, int FIRST, int LAST, class Codes>
inline void dot(Codes codes, int64_t, int row, const Activations<NT> &x, F<4> (&out)[NT][R / 4]) {
    static_assert(TILES == 1, "registers are few");
    int32_t sums[NT][R];
    for (int t = 0; t < NT; t++)
        for (int r = 0; r < R; r++) sums[t][r] = start_of<ZERO, FIRST, LAST>(x, t);
    for (int step = FIRST; step < LAST; step++)
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
