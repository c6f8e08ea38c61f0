// Attention over pages.
//
// Keys are taken in tiles of 128 at fixed positions. A tile's softmax is done on its own (largest score, exponentials, sum,
// weighted values) and joined to those before it, tile by tile in order. A query meets exactly the positions it may see, in
// ascending order, whatever is computed beside it: so its bits are the same in a prefill, in any chunk of it, and alone.

#include <algorithm>
#include <limits>
#include <vector>

#include "ops.h"
#include "pages.h"
#include "pool.h"

namespace vox {
namespace {

constexpr int TILE = 128;         // keys
constexpr int64_t VECTORS = 32;   // query vectors that share a tile's keys: tokens x heads of one group
constexpr int64_t SPREAD_AT = 8;  // from this many on, a tile that is not float32 is converted once, up front
constexpr float LOWEST = -std::numeric_limits<float>::infinity();

struct Call {
    const float *q;
    float *out;
    int64_t heads;
    Pages pages;
    const int32_t *positions, *query_starts, *context_lengths, *block_tables;
    int64_t rows, table_columns;
    float scale;
    int64_t window, causal;
    float softcap;
    const int32_t *thinned_from;  // per row: the first key that stands for several equal ones; null: none does
    float thinned_log;            // the logarithm of their number

    int64_t group() const { return heads / pages.kv_heads; }
    int64_t tokens_per_unit() const {
        int64_t tokens = std::max<int64_t>(1, VECTORS / group());
        return tokens >= 4 ? tokens / 4 * 4 : tokens;
    }
};

// Query tokens [first, last) of one row against one key-value head.
struct Unit {
    int64_t row, head, first, last;
};

// The softmax of a query vector over the keys so far.
struct State {
    float top = LOWEST, sum = 0.0f;
    bool empty = true;
};

// What one thread needs for a unit. Found once per unit: thread-local storage of a loaded library is slow to reach.
struct Scratch {
    std::vector<float> scores, wide, values, tile_values;
    std::vector<State> states, tile_states;
    const void *k[TILE], *v[TILE];
    float k_scale[TILE], v_scale[TILE];
};

Scratch &scratch() {
    static thread_local Scratch mine;
    return mine;
}

// ---- the two products

// scores[i][j] = q[i] . k[j]: lanes along the head, four keys at a time (their list is padded to multiples of four).
template <int NQ, int W, class T>
void score(const float *const *q, const void *const *k, int64_t first, int64_t last, int64_t dim, float *scores) {
    for (int64_t j = first / 4 * 4; j < last; j += 4) {
        F<W> sums[NQ][4] = {};
        const T *key[4];
        for (int u = 0; u < 4; u++) key[u] = static_cast<const T *>(k[j + u]);
        for (int64_t d = 0; d < dim; d += W) {
            F<W> query[NQ];
            for (int i = 0; i < NQ; i++) query[i] = load<W>(q[i] + d);
            for (int u = 0; u < 4; u++) {
                F<W> right = load<W>(key[u] + d);
                for (int i = 0; i < NQ; i++) sums[i][u] = fma(query[i], right, sums[i][u]);
            }
        }
        for (int i = 0; i < NQ; i++)
            store<4>(scores + i * TILE + j,
                     reduce4(fold(sums[i][0]), fold(sums[i][1]), fold(sums[i][2]), fold(sums[i][3])));
    }
}

// out[i] += sum over j of weights[i][j] * v[j], in ascending j, D lanes at a time.
template <int NQ, int W, int V, class T>
void weigh_columns(const float *weights, const void *const *v, int64_t first, int64_t last, int64_t column, float *const *out) {
    F<W> sums[NQ][V];
    for (int i = 0; i < NQ; i++)
        for (int u = 0; u < V; u++) sums[i][u] = load<W>(out[i] + column + u * W);
    for (int64_t j = first; j < last; j++) {
        const T *value = static_cast<const T *>(v[j]) + column;
        F<W> loaded[V];
        for (int u = 0; u < V; u++) loaded[u] = load<W>(value + u * W);
        for (int i = 0; i < NQ; i++)
            for (int u = 0; u < V; u++) sums[i][u] = fma(splat<W>(weights[i * TILE + j]), loaded[u], sums[i][u]);
    }
    for (int i = 0; i < NQ; i++)
        for (int u = 0; u < V; u++) store<W>(out[i] + column + u * W, sums[i][u]);
}

template <int NQ, int W, class T>
void weigh(const float *weights, const void *const *v, int64_t first, int64_t last, int64_t dim, float *const *out) {
    if (first >= last) return;
    int64_t column = 0;
    for (; column + 4 * W <= dim; column += 4 * W) weigh_columns<NQ, W, 4, T>(weights, v, first, last, column, out);
    for (; column < dim; column += W) weigh_columns<NQ, W, 1, T>(weights, v, first, last, column, out);
}

template <class Function> void by_count(int count, Function &&function) {
    switch (count) {
        case 1: return function(std::integral_constant<int, 1>{});
        case 2: return function(std::integral_constant<int, 2>{});
        case 3: return function(std::integral_constant<int, 3>{});
        default: return function(std::integral_constant<int, 4>{});
    }
}

// ---- one tile of keys against all vectors of a unit

struct Tile {
    const Call &call;
    const Unit &unit;
    int64_t start;  // position of its first key
    int64_t first, last;  // keys some query of the unit sees, relative to start

    Tile(const Call &c, const Unit &u, int64_t index) : call(c), unit(u), start(index * TILE) {
        first = TILE, last = 0;
        for (int64_t t = u.first; t < u.last; t++) {
            first = std::min(first, low(t));
            last = std::max(last, high(t));
        }
    }

    // The keys [low, high) of this tile that token t sees.
    int64_t low(int64_t t) const {
        int64_t from = call.window ? call.positions[t] - call.window + 1 : 0;
        return std::clamp<int64_t>(from - start, 0, TILE);
    }
    int64_t high(int64_t t) const {
        int64_t length = call.context_lengths[unit.row];
        int64_t to = call.causal ? std::min<int64_t>(call.positions[t] + 1, length) : length;
        return std::clamp<int64_t>(to - start, 0, TILE);
    }
    // The first key of this tile that stands for several.
    int64_t thinned() const {
        return call.thinned_from ? std::clamp<int64_t>(call.thinned_from[unit.row] - start, 0, TILE) : TILE;
    }
};

// Fills the list of keys up to multiples of four at both ends; what comes of the copies is never used.
void pad(const Tile &tile, Scratch &s) {
    for (int64_t j = tile.first / 4 * 4; j < tile.first; j++) s.k[j] = s.k[tile.first];
    for (int64_t j = tile.last; j % 4; j++) s.k[j] = s.k[tile.last - 1];
}

// Lists where the tile's keys and values lie, and their scales.
template <class T> void locate(const Tile &tile, Scratch &s) {
    const Pages &pages = tile.call.pages;
    const int32_t *table = tile.call.block_tables + tile.unit.row * tile.call.table_columns;
    for (int64_t j = tile.first; j < tile.last; j++) {
        int64_t position = tile.start + j;
        int64_t vector = pages.vector(table[position / pages.block_tokens], tile.unit.head, position % pages.block_tokens);
        s.k[j] = static_cast<const T *>(pages.k) + vector * pages.head_dim;
        s.v[j] = static_cast<const T *>(pages.v) + vector * pages.head_dim;
        if (pages.type == INT8) {
            s.k_scale[j] = widen(pages.k_scale[vector]);
            s.v_scale[j] = widen(pages.v_scale[vector]);
        }
    }
    pad(tile, s);
}

// Converts the listed vectors to float32 and lists the copies instead: exact, so the products keep their bits.
template <class T> void spread(const Tile &tile, Scratch &s) {
    int64_t dim = tile.call.pages.head_dim;
    s.wide.resize(2 * TILE * dim);
    float *to = s.wide.data();
    for (const void **list : {s.k, s.v})
        for (int64_t j = tile.first; j < tile.last; j++, to += dim) {
            const T *from = static_cast<const T *>(list[j]);
            for (int64_t d = 0; d < dim; d += 4) store<4>(to + d, load<4>(from + d));
            list[j] = to;
        }
    pad(tile, s);
}

// Turns a vector's raw scores into weights, zero outside [low, high); returns its state for this tile alone.
State soften(const Tile &tile, int64_t low, int64_t high, float *scores, const Scratch &s) {
    constexpr int W = MEDIUM;
    const Call &call = tile.call;
    State state;
    if (low >= high) return state;
    bool scaled = call.pages.type == INT8;
    if (scaled)
        for (int64_t j = low; j < high; j++) scores[j] *= s.k_scale[j];
    int64_t begin = low / W * W, end = (high + W - 1) / W * W;
    for (int64_t j = begin; j < low; j++) scores[j] = LOWEST;
    for (int64_t j = high; j < end; j++) scores[j] = LOWEST;
    F<W> top = splat<W>(LOWEST);
    for (int64_t j = begin; j < end; j += W) {
        F<W> x = load<W>(scores + j) * call.scale;
        if (call.softcap != 0.0f) {
            I<W> hidden = x == LOWEST;
            x = hidden ? splat<W>(LOWEST) : tanh<W>(x / call.softcap) * call.softcap;
        }
        store<W>(scores + j, x);
        top = x > top ? x : top;
    }
    state.top = top[0];
    for (int i = 1; i < W; i++) state.top = std::max(state.top, top[i]);
    for (int64_t j = std::max(low, tile.thinned()); j < high; j++) {
        scores[j] += call.thinned_log;
        state.top = std::max(state.top, scores[j]);
    }
    F<W> sum = {};
    for (int64_t j = begin; j < end; j += W) {
        F<W> weight = exp<W>(load<W>(scores + j) - state.top);
        store<W>(scores + j, weight);
        sum += weight;
    }
    state.sum = reduce(sum);
    state.empty = false;
    if (scaled)
        for (int64_t j = low; j < high; j++) scores[j] *= s.v_scale[j];
    return state;
}

// Computes, for every vector of the unit, this tile's state and weighted values [vectors][dim].
template <int W, class T> void attend(const Tile &tile, Scratch &s, State *states, float *values) {
    const Call &call = tile.call;
    int64_t dim = call.pages.head_dim, group = call.group(), vectors = (tile.unit.last - tile.unit.first) * group;
    s.scores.resize(size_t(vectors * TILE));
    std::fill_n(values, vectors * dim, 0.0f);
    for (int64_t i = 0; i < vectors; i += 4) {
        int count = int(std::min<int64_t>(4, vectors - i));
        const float *q[4];
        float *scores = s.scores.data() + i * TILE, *out[4];
        int64_t low[4], high[4], from = TILE, to = 0, common_low = 0, common_high = TILE;
        for (int u = 0; u < count; u++) {
            int64_t t = tile.unit.first + (i + u) / group;
            q[u] = call.q + (t * call.heads + tile.unit.head * group + (i + u) % group) * dim;
            out[u] = values + (i + u) * dim;
            low[u] = tile.low(t), high[u] = tile.high(t);
            from = std::min(from, low[u]), to = std::max(to, high[u]);
            common_low = std::max(common_low, low[u]), common_high = std::min(common_high, high[u]);
        }
        if (from < to)
            by_count(count, [&](auto n) { score<n.value, W, T>(q, s.k, from, to, dim, scores); });
        for (int u = 0; u < count; u++) states[i + u] = soften(tile, low[u], high[u], scores + u * TILE, s);
        if (common_low >= common_high) {
            for (int u = 0; u < count; u++)
                weigh<1, W, T>(scores + u * TILE, s.v, low[u], high[u], dim, out + u);
            continue;
        }
        // Before and after the keys that all of them see, each goes alone: an unseen value must not even be multiplied by 0.
        for (int u = 0; u < count; u++)
            weigh<1, W, T>(scores + u * TILE, s.v, low[u], common_low, dim, out + u);
        by_count(count, [&](auto n) {
            weigh<n.value, W, T>(scores, s.v, common_low, common_high, dim, out);
        });
        for (int u = 0; u < count; u++)
            weigh<1, W, T>(scores + u * TILE, s.v, common_high, high[u], dim, out + u);
    }
}

template <int W> void attend_typed(const Tile &tile, Scratch &s, State *states, float *values) {
    bool many = (tile.unit.last - tile.unit.first) * tile.call.group() >= SPREAD_AT;
    switch (tile.call.pages.type) {
        case FLOAT32: locate<float>(tile, s); return attend<W, float>(tile, s, states, values);
        case BFLOAT16:
            locate<bf16>(tile, s);
            if (!many) return attend<W, bf16>(tile, s, states, values);
            spread<bf16>(tile, s);
            return attend<W, float>(tile, s, states, values);
        default:
            locate<int8_t>(tile, s);
            if (!many) return attend<W, int8_t>(tile, s, states, values);
            spread<int8_t>(tile, s);
            return attend<W, float>(tile, s, states, values);
    }
}

void attend_tile(const Tile &tile, Scratch &s, State *states, float *values) {
    if (tile.call.pages.head_dim % MEDIUM == 0) attend_typed<MEDIUM>(tile, s, states, values);
    else attend_typed<4>(tile, s, states, values);
}

// ---- joining tiles

void join(State &total, float *values, const State &state, const float *more, int64_t dim) {
    if (state.empty) return;
    if (total.empty) {
        total = state;
        std::copy_n(more, dim, values);
        return;
    }
    float top = std::max(total.top, state.top);
    float old_share = exp(total.top - top), new_share = exp(state.top - top);
    total.top = top;
    total.sum = fma(total.sum, old_share, state.sum * new_share);
    for (int64_t d = 0; d < dim; d++) values[d] = fma(values[d], old_share, more[d] * new_share);
}

void finish(const Call &call, const Unit &unit, const State *states, const float *values) {
    int64_t dim = call.pages.head_dim, group = call.group();
    for (int64_t i = 0; i < (unit.last - unit.first) * group; i++) {
        int64_t token = unit.first + i / group;
        float *out = call.out + (token * call.heads + unit.head * group + i % group) * dim;
        float share = states[i].empty ? 0.0f : 1.0f / states[i].sum;
        for (int64_t d = 0; d < dim; d++) out[d] = states[i].empty ? 0.0f : values[i * dim + d] * share;
    }
}

// Tiles [first, last) that some query of the unit sees.
std::pair<int64_t, int64_t> tiles(const Call &call, const Unit &unit) {
    int64_t from = std::numeric_limits<int64_t>::max(), to = 0, length = call.context_lengths[unit.row];
    for (int64_t t = unit.first; t < unit.last; t++) {
        from = std::min<int64_t>(from, call.window ? std::max<int64_t>(0, call.positions[t] - call.window + 1) : 0);
        to = std::max<int64_t>(to, call.causal ? std::min<int64_t>(call.positions[t] + 1, length) : length);
    }
    if (from >= to) return {0, 0};
    return {from / TILE, (to + TILE - 1) / TILE};
}

void run_unit(const Call &call, const Unit &unit) {
    Scratch &s = scratch();
    int64_t dim = call.pages.head_dim, vectors = (unit.last - unit.first) * call.group();
    s.values.resize(size_t(vectors * dim)), s.tile_values.resize(size_t(vectors * dim));
    s.states.assign(size_t(vectors), State{}), s.tile_states.resize(size_t(vectors));
    auto [first, last] = tiles(call, unit);
    for (int64_t index = first; index < last; index++) {
        attend_tile(Tile(call, unit, index), s, s.tile_states.data(), s.tile_values.data());
        for (int64_t i = 0; i < vectors; i++)
            join(s.states[i], &s.values[i * dim], s.tile_states[i], &s.tile_values[i * dim], dim);
    }
    finish(call, unit, s.states.data(), s.values.data());
}

// Few units over long contexts: tiles are computed side by side, then joined in the same order as above.
void run_split(const Call &call, const std::vector<Unit> &units) {
    struct Part {
        int64_t unit, tile;
        size_t states, values;
    };
    std::vector<Part> parts;
    size_t vectors = 0;
    int64_t dim = call.pages.head_dim;
    for (size_t u = 0; u < units.size(); u++) {
        auto [first, last] = tiles(call, units[u]);
        for (int64_t index = first; index < last; index++) {
            parts.push_back({int64_t(u), index, vectors, vectors * size_t(dim)});
            vectors += size_t((units[u].last - units[u].first) * call.group());
        }
    }
    std::vector<State> states(vectors);
    std::vector<float> values(vectors * size_t(dim));
    parallel(int64_t(parts.size()), [&](int64_t p) {
        const Part &part = parts[p];
        attend_tile(Tile(call, units[part.unit], part.tile), scratch(), &states[part.states], &values[part.values]);
    });
    size_t p = 0;
    for (size_t u = 0; u < units.size(); u++) {
        int64_t count = (units[u].last - units[u].first) * call.group();
        std::vector<State> total(size_t(count), State{});
        std::vector<float> sum(size_t(count * dim));
        for (; p < parts.size() && parts[p].unit == int64_t(u); p++)
            for (int64_t i = 0; i < count; i++)
                join(total[i], &sum[i * dim], states[parts[p].states + i], &values[parts[p].values + i * dim], dim);
        finish(call, units[u], total.data(), sum.data());
    }
}

void run(const Call &call) {
    std::vector<Unit> units;
    int64_t longest = 0;
    for (int64_t row = 0; row < call.rows; row++) {
        longest = std::max<int64_t>(longest, call.context_lengths[row]);
        int64_t first = call.query_starts[row], last = call.query_starts[row + 1], step = call.tokens_per_unit();
        // Late queries see the most keys: started first, they leave no thread alone at the end.
        for (int64_t t = first + (last - first - 1) / step * step; t >= first && last > first; t -= step)
            for (int64_t head = 0; head < call.pages.kv_heads; head++)
                units.push_back({row, head, t, std::min(t + step, last)});
    }
    if (int64_t(units.size()) < 4 * threads() && threads() > 1 && longest > 2 * TILE) return run_split(call, units);
    parallel(int64_t(units.size()), [&](int64_t u) { run_unit(call, units[u]); });
}

}  // namespace
}  // namespace vox

extern "C" void vox_paged_attention(const float *q, float *out, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                    int64_t type, void *k, void *v, void *k_scale, void *v_scale, int64_t block_tokens,
                                    const int32_t *positions, const int32_t *query_starts, const int32_t *context_lengths,
                                    const int32_t *block_tables, int64_t rows, int64_t table_columns, float scale,
                                    int64_t window, int64_t causal, float softcap, const int32_t *thinned_from,
                                    float thinned_log) {
    using namespace vox;
    Pages pages{type, k, v, static_cast<bf16 *>(k_scale), static_cast<bf16 *>(v_scale), kv_heads, block_tokens, head_dim};
    run(Call{q, out, heads, pages, positions, query_starts, context_lengths, block_tables, rows, table_columns, scale, window,
             causal, softcap, thinned_from, thinned_log});
}
