// Products with packed weights, and rows of a packed embedding table.
//
// For output o and token t, over groups g in order:  y += (dot(g) * x_scale(g)) * scale(g), then for 4 bits
// y += minimum(g) * x_sum_scale(g). Every path below keeps this order, so a row's bits never depend on its neighbours.

#include <algorithm>
#include <vector>

#include "ops.h"
#include "dot.h"
#include "pool.h"

namespace vox {
namespace {

constexpr int64_t BYTES4 = ROWS * 16 + 2 * ROWS * 2;  // of one group of 16 rows: nibbles, float16 scales and minimums
constexpr int64_t BYTES8 = ROWS * 32 + ROWS * 4;      // codes, float32 scales
constexpr int64_t SPREAD = ROWS * 32 + 2 * ROWS * 4;  // 4 bits spread out: codes as bytes, float32 scales and minimums
constexpr int64_t CHUNK = 32;                         // groups spread out at a time: 20 KiB, which the first cache keeps

// ---- how a group of 16 rows is read

struct Packed4 {
    using Codes = Nibbles;
    static constexpr bool SIGNED = false, MINIMUM = true;
    static constexpr int64_t BYTES = BYTES4;
    static F<LANES> scale(const uint8_t *group, int row) {
        return load_half<LANES>(reinterpret_cast<const uint16_t *>(group + ROWS * 16) + row);
    }
    static F<LANES> minimum(const uint8_t *group, int row) {
        return load_half<LANES>(reinterpret_cast<const uint16_t *>(group + ROWS * 16) + ROWS + row);
    }
};

struct Spread4 {
    using Codes = Bytes;
    static constexpr bool SIGNED = false, MINIMUM = true;
    static constexpr int64_t BYTES = SPREAD;
    static F<LANES> scale(const uint8_t *group, int row) {
        return load<LANES>(reinterpret_cast<const float *>(group + ROWS * 32) + row);
    }
    static F<LANES> minimum(const uint8_t *group, int row) {
        return load<LANES>(reinterpret_cast<const float *>(group + ROWS * 32) + ROWS + row);
    }
};

struct Packed8 {
    using Codes = Bytes;
    static constexpr bool SIGNED = true, MINIMUM = false;
    static constexpr int64_t BYTES = BYTES8;
    static F<LANES> scale(const uint8_t *group, int row) {
        return load<LANES>(reinterpret_cast<const float *>(group + ROWS * 32) + row);
    }
    static F<LANES> minimum(const uint8_t *, int) { return F<LANES>{}; }
};

void spread(const uint8_t *from, uint8_t *to, int64_t groups) {
    for (int64_t g = 0; g < groups; g++, from += BYTES4, to += SPREAD) {
        for (int i = 0; i < ROWS * 16; i++) to[i] = from[i] & 15;
        for (int i = 0; i < ROWS * 16; i++) to[ROWS * 16 + i] = from[i] >> 4;
        float *floats = reinterpret_cast<float *>(to + ROWS * 32);
        const uint16_t *halves = reinterpret_cast<const uint16_t *>(from + ROWS * 16);
        for (int i = 0; i < 2 * ROWS; i += LANES) store<LANES>(floats + i, load_half<LANES>(halves + i));
    }
}

// ---- activations

void quantise(const float *x, int64_t token, int64_t groups, Activations *tile) {
    for (int64_t g = 0; g < groups; g++, x += GROUP) {
        float largest = largest_magnitude(x, GROUP);  // NaN becomes the scale, and so stays in its row
        if (largest < 1e-30f) largest = 0.0f;
        float inverse = largest > 0.0f && largest < INFINITY ? 127.0f / largest : 0.0f;
        int32_t sum = 0;
        int8_t *codes = tile[g].codes[token];
        if (inverse == 0.0f) {
            std::memset(codes, 0, GROUP);
        } else {
            int32_t rounded[GROUP];
            I<4> total = {};
            for (int i = 0; i < GROUP; i += 4) {
                F<4> shifted = load<4>(x + i) * inverse + 12582912.0f;  // rounds half to even into the low bits
                I<4> value = (I<4>)shifted - 0x4b400000;
                total += value;
                std::memcpy(rounded + i, &value, sizeof value);
            }
            for (int i = 0; i < GROUP; i++) codes[i] = int8_t(rounded[i]);
            sum = (total[0] + total[1]) + (total[2] + total[3]);
        }
        float scale = largest / 127.0f;
        tile[g].scale[token] = scale;
        tile[g].sum[token] = sum;
        tile[g].sum_scale[token] = float(sum) * scale;
    }
}

// ---- one tile of the product: 16 rows, NT tokens

template <class Format, int NT, int R>
__attribute__((noinline)) void tile(const uint8_t *weight, const Activations *x, int64_t groups, float *out, int64_t stride) {
    constexpr int V = R / LANES;
    for (int row = 0; row < ROWS; row += R) {
        F<LANES> sums[NT][V];
        for (int t = 0; t < NT; t++)
            for (int r = 0; r < V; r++) sums[t][r] = load<LANES>(out + t * stride + row + r * LANES);
        const uint8_t *group = weight;
        for (int64_t g = 0; g < groups; g++, group += Format::BYTES) {
            F<LANES> dots[NT][V];
            dot<NT, R, Format::SIGNED>(typename Format::Codes{group}, row, x[g], dots);
            for (int r = 0; r < V; r++) {
                F<LANES> scale = Format::scale(group, row + r * LANES);
                F<LANES> minimum = Format::minimum(group, row + r * LANES);
                for (int t = 0; t < NT; t++) {
                    sums[t][r] = fma(dots[t][r] * x[g].scale[t], scale, sums[t][r]);
                    if (Format::MINIMUM) sums[t][r] = fma(minimum, splat<LANES>(x[g].sum_scale[t]), sums[t][r]);
                }
            }
        }
        for (int t = 0; t < NT; t++)
            for (int r = 0; r < V; r++) store<LANES>(out + t * stride + row + r * LANES, sums[t][r]);
    }
}

template <class Format>
void tile(int tokens, const uint8_t *weight, const Activations *x, int64_t groups, float *out, int64_t stride) {
    switch (tokens) {
        case 1: return tile<Format, 1, ROWS>(weight, x, groups, out, stride);
        case 2: return tile<Format, 2, TILE_ROWS>(weight, x, groups, out, stride);
        case 3: return tile<Format, 3, TILE_ROWS>(weight, x, groups, out, stride);
        default: return tile<Format, 4, TILE_ROWS>(weight, x, groups, out, stride);
    }
}

// ---- 16 output rows for all tokens

struct Product {
    const Activations *x;  // [tokens / 4][groups]
    const uint8_t *weight;
    const float *bias;
    float *out;
    int64_t bits, tokens, outputs, groups;

    template <class Format>
    void rows(const uint8_t *from, int64_t first, int64_t count, float *to, int64_t stride) const {
        for (int64_t t = 0; t < tokens; t += TOKENS)
            tile<Format>(int(std::min<int64_t>(tokens - t, TOKENS)), from, x + t / TOKENS * groups + first, count,
                         to + t * stride, stride);
    }

    void block(int64_t index) const {
        static thread_local std::vector<float> partial;
        static thread_local std::vector<uint8_t> spread_out(CHUNK * SPREAD + 64);
        int64_t row = index * ROWS, valid = std::min<int64_t>(ROWS, outputs - row), stride = outputs;
        float *to = out + row;
        if (valid < ROWS) {  // the last rows of a matrix that is no multiple of 16
            partial.resize(size_t(tokens * ROWS));
            to = partial.data(), stride = ROWS;
        }
        for (int64_t t = 0; t < tokens; t++)
            for (int r = 0; r < ROWS; r++) to[t * stride + r] = bias && r < valid ? bias[row + r] : 0.0f;
        if (bits == 8) {
            rows<Packed8>(weight + index * groups * BYTES8, 0, groups, to, stride);
        } else if (tokens <= TOKENS) {
            rows<Packed4>(weight + index * groups * BYTES4, 0, groups, to, stride);
        } else {
            uint8_t *panel = spread_out.data() + (64 - reinterpret_cast<uintptr_t>(spread_out.data()) % 64) % 64;
            for (int64_t g = 0; g < groups; g += CHUNK) {
                int64_t count = std::min(CHUNK, groups - g);
                spread(weight + (index * groups + g) * BYTES4, panel, count);
                rows<Spread4>(panel, g, count, to, stride);
            }
        }
        if (valid < ROWS)
            for (int64_t t = 0; t < tokens; t++) std::copy_n(to + t * ROWS, valid, out + t * outputs + row);
    }
};

// The calling thread's buffer for quantised activations, kept from call to call.
Activations *scratch(int64_t count) {
    static thread_local std::vector<uint8_t> buffer;
    size_t needed = size_t(count) * sizeof(Activations) + 64;
    if (buffer.size() < needed) buffer.resize(needed);
    uintptr_t start = (reinterpret_cast<uintptr_t>(buffer.data()) + 63) & ~uintptr_t(63);
    return reinterpret_cast<Activations *>(start);
}

}  // namespace
}  // namespace vox

extern "C" void vox_packed_linear(const float *x, const uint8_t *weight, const float *bias, float *out, int64_t bits,
                                  int64_t tokens, int64_t outputs, int64_t inputs) {
    using namespace vox;
    int64_t groups = inputs / GROUP, tiles = (tokens + TOKENS - 1) / TOKENS;
    Activations *quantised = scratch(tiles * groups);
    auto quantise_tile = [&](int64_t index) {
        for (int64_t t = index * TOKENS; t < std::min(tokens, (index + 1) * TOKENS); t++)
            quantise(x + t * inputs, t % TOKENS, groups, quantised + index * groups);
    };
    if (tiles < 4)
        for (int64_t index = 0; index < tiles; index++) quantise_tile(index);
    else
        parallel(tiles, quantise_tile);
    Product product{quantised, weight, bias, out, bits, tokens, outputs, groups};
    int64_t blocks = (outputs + ROWS - 1) / ROWS, step = std::max<int64_t>(1, blocks / (threads() * 6));
    parallel((blocks + step - 1) / step, [&](int64_t unit) {
        for (int64_t index = unit * step; index < std::min(blocks, (unit + 1) * step); index++) product.block(index);
    });
}

extern "C" void vox_packed_embed(const int64_t *ids, const uint8_t *weight, float *out, int64_t bits, int64_t tokens,
                                 int64_t inputs) {
    using namespace vox;
    int64_t groups = inputs / GROUP;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = ids[t] % ROWS;
        const uint8_t *group = weight + ids[t] / ROWS * groups * (bits == 8 ? BYTES8 : BYTES4);
        for (int64_t g = 0; g < groups; g++, group += bits == 8 ? BYTES8 : BYTES4) {
            const uint8_t *tail = group + ROWS * (bits == 8 ? 32 : 16);
            for (int i = 0; i < GROUP; i++, out++) {
                int step = i / 4;
                if (bits == 8) {
                    float scale;
                    std::memcpy(&scale, tail + row * 4, 4);
                    *out = float(static_cast<int8_t>(group[step * 64 + row * 4 + i % 4])) * scale;
                } else {
                    uint16_t scale, minimum;
                    std::memcpy(&scale, tail + row * 2, 2);
                    std::memcpy(&minimum, tail + (ROWS + row) * 2, 2);
                    int both = group[(step & 3) * 64 + row * 4 + i % 4];
                    int value = step < 4 ? both & 15 : both >> 4;
                    *out = float(value) * from_half(scale) + from_half(minimum);
                }
            }
        }
    }
}
