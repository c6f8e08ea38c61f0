// Products with packed weights, and rows of a packed embedding table.
//
// For output o and token t, over groups g in order:  y += (dot(g) * x_scale(g)) * scale(g), then with minimums
// y += minimum(g) * x_sum_scale(g). Where 16 inputs share a scale, a group is two halves, one after the other. Every path
// below keeps this order, so a row's bits never depend on its neighbours.

#include <algorithm>
#include <vector>

#include "ops.h"
#include "dot.h"
#include "pool.h"

namespace vox {
namespace {

constexpr int64_t TOKEN_BYTES = sizeof(Activations<1>);  // a token's share of a group, in tiles of any width
constexpr int64_t CHUNK = 32;  // groups spread out at a time: 20 KiB, which the first cache keeps

constexpr int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// ---- how 16 rows are stored: the codes of all groups, then their float16 scales and minimums

template <int BITS, bool MINIMUM_> struct Format {
    using Codes = Stored<BITS>;
    static constexpr bool MINIMUM = MINIMUM_;
    static constexpr int PARTS = BITS == 6 ? 2 : 1;  // of a group that have a scale each
    static constexpr int ZERO = zero(Codes{}, MINIMUM);
    static constexpr int64_t FLOATS = (PARTS + MINIMUM) * ROWS * 2;  // bytes
    static int64_t tile_bytes(int64_t groups) { return align(groups * (Codes::BYTES + FLOATS)); }
    static F<LANES> floats(const uint8_t *group, int index) {
        return load_half<LANES>(reinterpret_cast<const uint16_t *>(group) + index);
    }
};

// The same spread out in the first cache: bytes, and float32.
template <int BITS, bool MINIMUM_, int PARTS_> struct Panel {
    using Codes = Spread<BITS>;
    static constexpr bool MINIMUM = MINIMUM_;
    static constexpr int PARTS = PARTS_;
    static constexpr int ZERO = zero(Codes{}, MINIMUM);
    static constexpr int64_t FLOATS = (PARTS + MINIMUM) * ROWS * 4;
    static F<LANES> floats(const uint8_t *group, int index) {
        return load<LANES>(reinterpret_cast<const float *>(group) + index);
    }
};

constexpr int64_t PANEL_BYTES = CHUNK * (ROWS * GROUP + 2 * ROWS * 4);

template <int BITS, bool MINIMUM>
void spread(const uint8_t *codes, const uint8_t *floats, int64_t groups, uint8_t *to_codes, uint8_t *to_floats) {
    using From = Format<BITS, MINIMUM>;
    constexpr uint8_t shift = uint8_t(spread_shift(BITS, MINIMUM));
    for (int64_t g = 0; g < groups; g++, codes += From::Codes::BYTES, to_codes += ROWS * GROUP) {
        if constexpr (BITS == 8) {
            for (int i = 0; i < ROWS * GROUP; i++) to_codes[i] = uint8_t(codes[i] + shift);
            continue;
        }
        for (int step = 0; step < 8; step++) {
            const uint8_t *low = codes + (step & 3) * 64, *high = codes + 256 + (BITS == 6 ? (step >> 2) * 64 : 0);
            uint8_t *to = to_codes + step * 64;
            for (int i = 0; i < 64; i++) {
                int code = step < 4 ? low[i] & 15 : low[i] >> 4;
                if (BITS == 5) code |= (high[i] >> step & 1) << 4;
                if (BITS == 6) code |= (high[i] >> 2 * (step & 3) & 3) << 4;
                to[i] = uint8_t(code + shift);
            }
        }
    }
    float *to = reinterpret_cast<float *>(to_floats);
    const uint16_t *from = reinterpret_cast<const uint16_t *>(floats);
    for (int64_t i = 0; i < groups * From::FLOATS / 2; i += LANES) store<LANES>(to + i, load_half<LANES>(from + i));
}

// ---- activations

template <int N> void quantise_group(const float *x, int token, Activations<N> &to) {
    float largest = largest_magnitude(x, GROUP);  // NaN becomes the scale, and so stays in its row
    if (largest < 1e-30f) largest = 0.0f;
    float inverse = largest > 0.0f && largest < INFINITY ? 127.0f / largest : 0.0f;
    int32_t low = 0, sum = 0;
    int8_t *codes = to.codes[token];
    if (inverse == 0.0f) {
        std::memset(codes, 0, GROUP);
    } else {
        int32_t rounded[GROUP];
        for (int half = 0; half < 2; half++) {
            I<4> total = {};
            for (int i = half * 16; i < half * 16 + 16; i += 4) {
                F<4> shifted = load<4>(x + i) * inverse + 12582912.0f;  // rounds half to even into the low bits
                I<4> value = (I<4>)shifted - 0x4b400000;
                total += value;
                std::memcpy(rounded + i, &value, sizeof value);
            }
            sum += (total[0] + total[1]) + (total[2] + total[3]);
            if (half == 0) low = sum;
        }
        for (int i = 0; i < GROUP; i++) codes[i] = int8_t(rounded[i]);
    }
    to.scale[token] = largest / 127.0f;
    to.sum_scale[token] = float(sum) * to.scale[token];
    to.sum[token] = sum;
    to.low_sum[token] = low;
}

// Calls function(std::integral_constant<int, N>) for the N = count, 1 to TOKENS.
template <int N = 1, class Function> void by_width(int64_t count, Function &&function) {
    if constexpr (N < TOKENS) {
        if (count > N) return by_width<N + 1>(count, function);
    }
    function(std::integral_constant<int, N>{});
}

// Quantises the tokens of one tile; `x` is the first one's row.
void quantise_tile(const float *x, int64_t tokens, int64_t groups, uint8_t *to) {
    by_width(tokens, [&](auto width) {
        auto *tile = reinterpret_cast<Activations<width> *>(to);
        for (int t = 0; t < width; t++)
            for (int64_t g = 0; g < groups; g++) quantise_group(x + (t * groups + g) * GROUP, t, tile[g]);
    });
}

// ---- one tile of the product: 16 rows, NT tokens

template <class Format, int NT, int R, int FIRST, int LAST>
inline void add(const uint8_t *codes, const uint8_t *floats, int row, const Activations<NT> &x,
                F<LANES> (&sums)[NT][R / LANES]) {
    F<LANES> dots[NT][R / LANES];
    dot<NT, R, Format::ZERO, FIRST, LAST>(typename Format::Codes{codes}, row, x, dots);
    for (int r = 0; r < R / LANES; r++) {
        F<LANES> scale = Format::floats(floats, (FIRST ? ROWS : 0) + row + r * LANES);
        for (int t = 0; t < NT; t++) sums[t][r] = fma(dots[t][r] * x.scale[t], scale, sums[t][r]);
    }
}

template <class Format, int NT, int R>
__attribute__((noinline)) void tile(const uint8_t *codes, const uint8_t *floats, const Activations<NT> *x, int64_t groups,
                                    float *out, int64_t stride) {
    constexpr int V = R / LANES;
    for (int row = 0; row < ROWS; row += R) {
        F<LANES> sums[NT][V];
        for (int t = 0; t < NT; t++)
            for (int r = 0; r < V; r++) sums[t][r] = load<LANES>(out + t * stride + row + r * LANES);
        const uint8_t *code = codes, *number = floats;
        for (int64_t g = 0; g < groups; g++, code += Format::Codes::BYTES, number += Format::FLOATS) {
            if constexpr (Format::PARTS == 1) {
                add<Format, NT, R, 0, 8>(code, number, row, x[g], sums);
            } else {
                add<Format, NT, R, 0, 4>(code, number, row, x[g], sums);
                add<Format, NT, R, 4, 8>(code, number, row, x[g], sums);
            }
            if constexpr (Format::MINIMUM)
                for (int r = 0; r < V; r++) {
                    F<LANES> minimum = Format::floats(number, ROWS + row + r * LANES);
                    for (int t = 0; t < NT; t++)
                        sums[t][r] = fma(minimum, splat<LANES>(x[g].sum_scale[t]), sums[t][r]);
                }
        }
        for (int t = 0; t < NT; t++)
            for (int r = 0; r < V; r++) store<LANES>(out + t * stride + row + r * LANES, sums[t][r]);
    }
}

// ---- 16 output rows for all tokens

struct Part {
    int64_t bits, minimum;
    const uint8_t *data;
    int64_t outputs;

    int64_t tiles() const { return (outputs + ROWS - 1) / ROWS; }
};

// Calls function(std::integral_constant bits, minimum) for a part's format.
template <class Function> void by_format(const Part &part, Function &&function) {
    using Yes = std::true_type;
    using No = std::false_type;
    switch (part.bits) {
        case 4:
            if (part.minimum) return function(std::integral_constant<int, 4>{}, Yes{});
            return function(std::integral_constant<int, 4>{}, No{});
        case 5:
            if (part.minimum) return function(std::integral_constant<int, 5>{}, Yes{});
            return function(std::integral_constant<int, 5>{}, No{});
        case 6: return function(std::integral_constant<int, 6>{}, No{});
        default: return function(std::integral_constant<int, 8>{}, No{});
    }
}

uint8_t *aligned(std::vector<uint8_t> &buffer, size_t bytes) {
    if (buffer.size() < bytes + 64) buffer.resize(bytes + 64);
    return reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(buffer.data()) + 63) & ~uintptr_t(63));
}

struct Product {
    const uint8_t *x;  // tiles of TOKENS tokens, the last one narrower: [groups] of Activations<width>
    const Part *parts;
    const float *bias;
    float *out;
    int64_t tokens, outputs, groups;

    template <class Format>
    void rows(const uint8_t *codes, const uint8_t *floats, int64_t first, int64_t count, float *to, int64_t stride) const {
        for (int64_t t = 0; t < tokens; t += TOKENS)
            by_width(std::min<int64_t>(tokens - t, TOKENS), [&](auto width) {
                auto *tokens_of_tile = reinterpret_cast<const Activations<width> *>(x + t * groups * TOKEN_BYTES);
                constexpr int R = width == 1 ? ROWS : TILE_ROWS;
                tile<Format, width, R>(codes, floats, tokens_of_tile + first, count, to + t * stride, stride);
            });
    }

    template <int BITS, bool MINIMUM> void run(const uint8_t *data, int64_t index, float *to, int64_t stride) const {
        static thread_local std::vector<uint8_t> store;
        using From = Format<BITS, MINIMUM>;
        using Wide = Panel<spread_bits(BITS), MINIMUM, From::PARTS>;
        const uint8_t *codes = data + index * From::tile_bytes(groups), *floats = codes + groups * From::Codes::BYTES;
        if (tokens <= TOKENS) return rows<From>(codes, floats, 0, groups, to, stride);
        uint8_t *panel = aligned(store, PANEL_BYTES), *wide = panel + CHUNK * ROWS * GROUP;
        for (int64_t g = 0; g < groups; g += CHUNK) {
            int64_t count = std::min(CHUNK, groups - g);
            spread<BITS, MINIMUM>(codes + g * From::Codes::BYTES, floats + g * From::FLOATS, count, panel, wide);
            rows<Wide>(panel, wide, g, count, to, stride);
        }
    }

    void block(int64_t index) const {
        static thread_local std::vector<float> partial;
        const Part *part = parts;
        int64_t row = 0;
        for (; index >= part->tiles(); part++) row += part->outputs, index -= part->tiles();
        int64_t valid = std::min<int64_t>(ROWS, part->outputs - index * ROWS), stride = outputs;
        row += index * ROWS;
        float *to = out + row;
        if (valid < ROWS) {  // the last rows of a matrix that is no multiple of 16
            partial.resize(size_t(tokens * ROWS));
            to = partial.data(), stride = ROWS;
        }
        for (int64_t t = 0; t < tokens; t++)
            for (int r = 0; r < ROWS; r++) to[t * stride + r] = bias && r < valid ? bias[row + r] : 0.0f;
        by_format(*part, [&](auto bits, auto minimum) { run<bits, minimum>(part->data, index, to, stride); });
        if (valid < ROWS)
            for (int64_t t = 0; t < tokens; t++) std::copy_n(to + t * ROWS, valid, out + t * outputs + row);
    }
};

}  // namespace
}  // namespace vox

extern "C" void vox_packed_linear(const float *x, const void *parts, int64_t count, const float *bias, float *out,
                                  int64_t tokens, int64_t outputs, int64_t inputs) {
    using namespace vox;
    static thread_local std::vector<uint8_t> store;  // kept from call to call
    int64_t groups = inputs / GROUP, tiles = (tokens + TOKENS - 1) / TOKENS, blocks = 0;
    uint8_t *quantised = aligned(store, size_t(tokens * groups * TOKEN_BYTES));
    auto quantise = [&](int64_t index) {
        int64_t t = index * TOKENS;
        quantise_tile(x + t * inputs, std::min<int64_t>(tokens - t, TOKENS), groups, quantised + t * groups * TOKEN_BYTES);
    };
    if (tiles < 4)
        for (int64_t index = 0; index < tiles; index++) quantise(index);
    else
        parallel(tiles, quantise);
    Product product{quantised, static_cast<const Part *>(parts), bias, out, tokens, outputs, groups};
    for (int64_t n = 0; n < count; n++) blocks += product.parts[n].tiles();
    int64_t step = std::max<int64_t>(1, blocks / (threads() * 6));
    parallel((blocks + step - 1) / step, [&](int64_t unit) {
        for (int64_t index = unit * step; index < std::min(blocks, (unit + 1) * step); index++) product.block(index);
    });
}

extern "C" void vox_packed_embed(const int64_t *ids, const void *table, float *out, int64_t tokens, int64_t inputs) {
    using namespace vox;
    const Part &part = *static_cast<const Part *>(table);
    int64_t groups = inputs / GROUP;
    by_format(part, [&](auto bits, auto minimum) {
        using From = Format<bits, minimum>;
        constexpr int middle = minimum || bits == 8 ? 0 : 1 << (bits - 1);
        for (int64_t t = 0; t < tokens; t++) {
            int row = int(ids[t] % ROWS);
            const uint8_t *codes = part.data + ids[t] / ROWS * From::tile_bytes(groups);
            const uint16_t *halves = reinterpret_cast<const uint16_t *>(codes + groups * From::Codes::BYTES) + row;
            for (int64_t g = 0; g < groups; g++, codes += From::Codes::BYTES, halves += From::FLOATS / 2)
                for (int i = 0; i < GROUP; i++, out++) {
                    int code = code_at(typename From::Codes{codes}, i / 4, row * 4 + i % 4) - middle;
                    *out = float(code) * from_half(halves[From::PARTS * i / GROUP * ROWS]);
                    if (minimum) *out += from_half(halves[ROWS]);
                }
        }
    });
}
