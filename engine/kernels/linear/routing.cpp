// The choice of experts for each token, from a router's scores.

#include <algorithm>

#include "ops.h"
#include "rows.h"

namespace vox {
namespace {

void sigmoid_row(float *x, int64_t n) {
    constexpr int W = WIDE;
    for (int64_t i = 0; i < n; i += W) {  // the rest of a row goes through the same instructions as its beginning
        float part[W] = {};
        int64_t count = std::min<int64_t>(W, n - i);
        std::copy_n(x + i, count, part);
        F<W> found = splat<W>(1.0f) / (exp<W>(-load<W>(part)) + 1.0f);
        for (int64_t j = 0; j < count; j++) x[i + j] = found[j];
    }
}

}  // namespace
}  // namespace vox

// `scores` [tokens, experts] become their sigmoids. `experts` and `shares` [tokens, chosen] are the best ones, the best
// first; of equal ones the first. A score that is not a number is the worst.
extern "C" void vox_route(float *scores, const float *bias, int64_t *experts, float *shares, int64_t tokens, int64_t count,
                          int64_t chosen, int64_t normed, float scale) {
    using namespace vox;
    each_row(tokens, 8 * count, [&](int64_t t) {
        float *score = scores + t * count, *share = shares + t * chosen, total = 0.0f;
        int64_t *found = experts + t * chosen;
        sigmoid_row(score, count);
        for (int64_t place = 0; place < chosen; place++) {
            int64_t best = -1;
            float most = 0.0f;
            for (int64_t e = 0; e < count; e++) {
                if (std::find(found, found + place, e) != found + place) continue;
                float rank = bias ? score[e] + bias[e] : score[e];
                if (best < 0 || rank > most || std::isnan(most)) best = e, most = rank;
            }
            found[place] = best;
            share[place] = score[best];
            total += score[best];
        }
        float factor = normed ? total + 1e-6f : 1.0f;
        for (int64_t place = 0; place < chosen; place++) share[place] = share[place] / factor * scale;
    });
}
