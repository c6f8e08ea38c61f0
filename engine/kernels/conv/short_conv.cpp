// A gated short convolution over a step's tokens, whose past lies in the KV blocks.

#include <algorithm>
#include <vector>

#include "ops.h"
#include "rows.h"

namespace vox {
namespace {

struct StatePages {
    float *vectors;  // [blocks, slots, channels]
    int64_t slots, block_tokens, channels;

    float *at(int64_t block, int64_t offset) const { return vectors + (block * slots + offset % slots) * channels; }
};

// Adds b * x * weight. A product is rounded before it is weighted, as when it comes back from the pages.
void add_products(const float *b, const float *x, const float *weight, float *sum, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += b[i] * x[i] * weight[i];
}

void add_vector(const float *vector, const float *weight, float *sum, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += vector[i] * weight[i];
}

}  // namespace
}  // namespace vox

// `bcx` [tokens, 3 * channels], `weight` [taps, channels], the oldest token's first. All outputs are computed before any
// product is written: a row's later tokens overwrite what its first ones read.
extern "C" void vox_short_conv(const float *bcx, const float *weight, const float *bias, float *out, int64_t tokens,
                               int64_t channels, int64_t taps, float *vectors, int64_t slots, int64_t block_tokens,
                               const int32_t *positions, const int32_t *places, const int32_t *query_starts,
                               const int32_t *block_tables, int64_t rows, int64_t table_columns) {
    using namespace vox;
    static thread_local std::vector<int64_t> owners;  // of each token: its row, -1 if it has none
    StatePages pages{vectors, slots, block_tokens, channels};
    owners.assign(size_t(tokens), -1);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t t = query_starts[r]; t < query_starts[r + 1]; t++) owners[size_t(t)] = r;
    const int64_t *row_of = owners.data(), n = channels;
    each_row(tokens, (taps + 2) * n, [&](int64_t t) {
        float *sum = out + t * n;
        std::fill_n(sum, n, 0.0f);
        int64_t row = row_of[t];
        if (row < 0) return;
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t back = taps - 1 - tap, position = positions[t] - back;
            const float *factor = weight + tap * n;
            if (t - back >= query_starts[row]) {
                const float *input = bcx + (t - back) * 3 * n;
                add_products(input, input + 2 * n, factor, sum, n);
            } else if (position >= 0) {
                int64_t block = block_tables[row * table_columns + position / block_tokens];
                add_vector(pages.at(block, position % block_tokens), factor, sum, n);
            }
        }
        const float *gate = bcx + (t * 3 + 1) * n;
        for (int64_t i = 0; i < n; i++) sum[i] = gate[i] * (bias ? sum[i] + bias[i] : sum[i]);
    });
    each_row(tokens, 2 * n, [&](int64_t t) {
        int64_t row = row_of[t];
        if (row < 0 || places[t] < 0) return;
        int64_t offset = places[t] % block_tokens, later = query_starts[row + 1] - 1 - t;
        if (later >= slots && offset + slots < block_tokens) return;  // a later token of this step has the slot
        const float *b = bcx + t * 3 * n, *x = b + 2 * n;
        float *to = pages.at(places[t] / block_tokens, offset);
        for (int64_t i = 0; i < n; i++) to[i] = b[i] * x[i];
    });
}
