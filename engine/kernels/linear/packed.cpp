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
constexpr int TOKENS = 4;                                // of a tile, where there are more than a few
constexpr int64_t CHUNK = 32 / TILES;                    // groups spread out at a time: 20 KiB, which the first cache keeps
constexpr float NOTHING[TILES * ROWS] = {};

constexpr int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// ---- how 16 rows are stored: the codes of all groups, then their float16 scales and minimums

template <int BITS, bool MINIMUM_> struct Format {
    using Codes = Stored<BITS>;
    static constexpr bool MINIMUM = MINIMUM_;
    static constexpr int PARTS = BITS == 6 ? 2 : 1;  // of a group that have a scale each
    static constexpr int ZERO = zero(Codes{}, MINIMUM);
    static constexpr int64_t FLOATS = (PARTS + MINIMUM) * ROWS * 2;  // bytes
    static int64_t tile_bytes(int64_t groups) { return align(groups * (Codes::BYTES + FLOATS)); }
    static constexpr int64_t NEXT_TILE = 0;
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
    static constexpr int64_t NEXT_TILE = CHUNK * (ROWS * GROUP + 2 * ROWS * 4);  // bytes from a tile's panel to the next
    static F<LANES> floats(const uint8_t *group, int index) {
        return load<LANES>(reinterpret_cast<const float *>(group) + index);
    }
};

// Spreads some groups of a tile into a panel: the codes, then the floats.
template <class From, class To> void spread(const uint8_t *codes, const uint8_t *floats, int64_t groups, uint8_t *to) {
    for (int64_t g = 0; g < groups; g++)
        spread(typename From::Codes{codes + g * From::Codes::BYTES}, to + g * To::Codes::BYTES, To::ZERO - From::ZERO);
    float *wide = reinterpret_cast<float *>(to + CHUNK * To::Codes::BYTES);
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(floats);
    for (int64_t i = 0; i < groups * To::FLOATS / 4; i += LANES) store<LANES>(wide + i, load_half<LANES>(halves + i));
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
    to.start[token] = -128 * sum;
    to.low_start[token] = -128 * low;
}

// Calls function(std::integral_constant<int, N>) for the N = count, 1 to MOST.
template <int MOST, int N = 1, class Function> void by_count(int64_t count, Function &&function) {
    if constexpr (N < MOST) {
        if (count > N) return by_count<MOST, N + 1>(count, function);
    }
    function(std::integral_constant<int, N>{});
}

// Quantises the tokens of one tile; `x` is the first one's row.
void quantise_tile(const float *x, int64_t tokens, int64_t groups, uint8_t *to) {
    by_count<FEW>(tokens, [&](auto width) {
        auto *tile = reinterpret_cast<Activations<width> *>(to);
        for (int t = 0; t < width; t++)
            for (int64_t g = 0; g < groups; g++) quantise_group(x + (t * groups + g) * GROUP, t, tile[g]);
    });
}

// ---- one tile of the product: 16 rows or several times 16, NT tokens

// Where sums come from and go to: `from` may be the bias (of stride 0), or `to` itself.
struct Sums {
    const float *from;
    int64_t from_stride;
    float *to;
    int64_t to_stride;
};

template <class Format, int NT, int R, int TILES, int FIRST, int LAST>
inline void add(const uint8_t *codes, const uint8_t *floats, int row, const Activations<NT> &x,
                F<LANES> (&sums)[NT][R / LANES * TILES]) {
    F<LANES> dots[NT][R / LANES * TILES];
    dot<NT, R, TILES, Format::ZERO, FIRST, LAST>(typename Format::Codes{codes}, Format::NEXT_TILE, row, x, dots);
    for (int r = 0; r < R / LANES * TILES; r++) {
        const uint8_t *tile = floats + r / (R / LANES) * Format::NEXT_TILE;
        F<LANES> scale = Format::floats(tile, (FIRST ? ROWS : 0) + row + r % (R / LANES) * LANES);
        for (int t = 0; t < NT; t++) sums[t][r] = fma(dots[t][r] * x.scale[t], scale, sums[t][r]);
    }
}

template <class Format, int NT, int R, int TILES>
__attribute__((noinline)) void tile(const uint8_t *codes, const uint8_t *floats, const Activations<NT> *x, int64_t groups,
                                    Sums place) {
    constexpr int V = R / LANES, ALL = V * TILES;
    for (int row = 0; row < ROWS; row += R) {
        F<LANES> sums[NT][ALL];
        for (int t = 0; t < NT; t++)
            for (int r = 0; r < ALL; r++)
                sums[t][r] = load<LANES>(place.from + t * place.from_stride + r / V * ROWS + row + r % V * LANES);
        const uint8_t *code = codes, *number = floats;
        for (int64_t g = 0; g < groups; g++, code += Format::Codes::BYTES, number += Format::FLOATS) {
            if constexpr (Format::NEXT_TILE == 0 && AHEAD > 0)  // stored codes stream by; panels are in the cache
                for (int64_t i = 0; i < Format::Codes::BYTES; i += 64) __builtin_prefetch(code + AHEAD + i);
            if constexpr (Format::PARTS == 1) {
                add<Format, NT, R, TILES, 0, 8>(code, number, row, x[g], sums);
            } else {
                add<Format, NT, R, TILES, 0, 4>(code, number, row, x[g], sums);
                add<Format, NT, R, TILES, 4, 8>(code, number, row, x[g], sums);
            }
            if constexpr (Format::MINIMUM)
                for (int r = 0; r < ALL; r++) {
                    F<LANES> minimum = Format::floats(number + r / V * Format::NEXT_TILE, ROWS + row + r % V * LANES);
                    for (int t = 0; t < NT; t++)
                        sums[t][r] = fma(minimum, splat<LANES>(x[g].sum_scale[t]), sums[t][r]);
                }
        }
        for (int t = 0; t < NT; t++)
            for (int r = 0; r < ALL; r++)
                store<LANES>(place.to + t * place.to_stride + r / V * ROWS + row + r % V * LANES, sums[t][r]);
    }
}

// ---- some tiles of 16 output rows for all tokens

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
    const uint8_t *x;  // tiles of a few or TOKENS tokens, the last one narrower: [groups] of Activations<width>
    const Part *parts;
    const float *bias;
    float *out;
    int64_t tokens, outputs, groups;

    // All tokens, few enough for one tile, with a tile of rows as it is stored.
    template <class Format> void few(const uint8_t *codes, const uint8_t *floats, Sums place) const {
        by_count<FEW>(tokens, [&](auto width) {
            constexpr int R = width == 1 ? ROWS : TILE_ROWS;
            tile<Format, width, R, 1>(codes, floats, reinterpret_cast<const Activations<width> *>(x), groups, place);
        });
    }

    // All tokens, tile by tile, with panels of groups [first, first + count).
    template <class Format> void many(const uint8_t *panel, int64_t tiles, int64_t first, int64_t count, Sums place) const {
        const uint8_t *floats = panel + CHUNK * Format::Codes::BYTES;
        for (int64_t t = 0; t < tokens; t += TOKENS) {
            Sums sums{place.from + t * place.from_stride, place.from_stride, place.to + t * place.to_stride, place.to_stride};
            by_count<TOKENS>(tokens - t, [&](auto width) {
                auto *tokens_of_tile = reinterpret_cast<const Activations<width> *>(x + t * groups * TOKEN_BYTES) + first;
                by_count<TILES>(tiles, [&](auto wide) {
                    tile<Format, width, TILE_ROWS, wide>(panel, floats, tokens_of_tile, count, sums);
                });
            });
        }
    }

    template <int BITS, bool MINIMUM> void run(const uint8_t *data, int64_t index, int64_t tiles, Sums place) const {
        static thread_local std::vector<uint8_t> store;
        using From = Format<BITS, MINIMUM>;
        using To = Panel<spread_bits(BITS), MINIMUM, From::PARTS>;
        const uint8_t *codes = data + index * From::tile_bytes(groups), *floats = codes + groups * From::Codes::BYTES;
        if (tokens <= FEW) return few<From>(codes, floats, place);
        uint8_t *panel = aligned(store, TILES * To::NEXT_TILE);
        for (int64_t g = 0; g < groups; g += CHUNK) {
            int64_t count = std::min(CHUNK, groups - g);
            for (int64_t n = 0; n < tiles; n++)
                spread<From, To>(codes + n * From::tile_bytes(groups) + g * From::Codes::BYTES,
                                 floats + n * From::tile_bytes(groups) + g * From::FLOATS, count, panel + n * To::NEXT_TILE);
            many<To>(panel, tiles, g, count, place);
            place.from = place.to, place.from_stride = place.to_stride;
        }
    }

    // Some tiles of a part, the first of whose rows is `row` of the whole.
    void rows(const Part &part, int64_t index, int64_t tiles, int64_t row) const {
        Sums place{bias ? bias + row : NOTHING, 0, out + row, outputs};
        by_format(part, [&](auto bits, auto minimum) { run<bits, minimum>(part.data, index, tiles, place); });
    }

    // The last rows of a part that is no multiple of 16.
    void last_rows(const Part &part, int64_t index, int64_t valid, int64_t row) const {
        static thread_local std::vector<float> partial;
        partial.resize(size_t(tokens * ROWS));
        float start[ROWS] = {};
        if (bias) std::copy_n(bias + row, valid, start);
        Sums place{start, 0, partial.data(), ROWS};
        by_format(part, [&](auto bits, auto minimum) { run<bits, minimum>(part.data, index, 1, place); });
        for (int64_t t = 0; t < tokens; t++) std::copy_n(&partial[size_t(t * ROWS)], valid, out + t * outputs + row);
    }

    // The tiles [first, last) of all parts.
    void blocks(int64_t first, int64_t last) const {
        int64_t row = 0;
        for (const Part *part = parts; first < last; part++) {
            for (int64_t end = std::min(last, part->tiles()); first < end;) {
                int64_t whole = std::min(end, part->outputs / ROWS) - first, at = row + first * ROWS;
                if (whole > 0) {
                    int64_t tiles = tokens <= FEW ? 1 : std::min<int64_t>(TILES, whole);
                    rows(*part, first, tiles, at);
                    first += tiles;
                } else {
                    last_rows(*part, first++, part->outputs % ROWS, at);
                }
            }
            row += part->outputs, first -= part->tiles(), last -= part->tiles();
            first = std::max<int64_t>(first, 0);
        }
    }
};

}  // namespace
}  // namespace vox

extern "C" void vox_packed_linear(const float *x, const void *parts, int64_t count, const float *bias, float *out,
                                  int64_t tokens, int64_t outputs, int64_t inputs) {
    using namespace vox;
    if (tokens == 0) return;
    static thread_local std::vector<uint8_t> store;  // kept from call to call
    int64_t groups = inputs / GROUP, width = tokens <= FEW ? FEW : TOKENS, tiles = (tokens + width - 1) / width, blocks = 0;
    uint8_t *quantised = aligned(store, size_t(tokens * groups * TOKEN_BYTES));
    auto quantise = [&](int64_t index) {
        int64_t t = index * width;
        quantise_tile(x + t * inputs, std::min(tokens - t, width), groups, quantised + t * groups * TOKEN_BYTES);
    };
    if (tiles < 4)
        for (int64_t index = 0; index < tiles; index++) quantise(index);
    else
        parallel(tiles, quantise);
    Product product{quantised, static_cast<const Part *>(parts), bias, out, tokens, outputs, groups};
    for (int64_t n = 0; n < count; n++) blocks += product.parts[n].tiles();
    int64_t step = std::max<int64_t>(1, blocks / (threads() * 6));
    if (tokens > FEW) step = (step + TILES - 1) / TILES * TILES;
    parallel((blocks + step - 1) / step,
             [&](int64_t unit) { product.blocks(unit * step, std::min(blocks, (unit + 1) * step)); });
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
