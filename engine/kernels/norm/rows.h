// What operations on single rows share.
#pragma once

#include "pool.h"
#include "simd.h"

namespace vox {

constexpr int64_t WORTH_SHARING = 16384;  // numbers: below this, waking a second thread costs more than it saves

// Calls body(row) for every row, on all threads if there is enough to do.
template <class Function> void each_row(int64_t rows, int64_t columns, Function &&body) {
    if (rows * columns < WORTH_SHARING) {
        for (int64_t row = 0; row < rows; row++) body(row);
        return;
    }
    int64_t step = rows / (threads() * 4) + 1;
    parallel((rows + step - 1) / step, [&](int64_t unit) {
        for (int64_t row = unit * step; row < rows && row < (unit + 1) * step; row++) body(row);
    });
}

// Writes x / rms(x) * weight. `out` may be `x`.
inline void rms_norm_row(const float *x, const float *weight, float *out, int64_t n, float eps) {
    constexpr int W = WIDE;
    F<W> sums[2] = {};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        for (int u = 0; u < 2; u++) {
            F<W> v = load<W>(x + i + u * W);
            sums[u] = fma(v, v, sums[u]);
        }
    float sum = reduce(sums[0] + sums[1]);
    for (; i < n; i++) sum = fma(x[i], x[i], sum);
    float scale = 1.0f / std::sqrt(sum / float(n) + eps);
    for (i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

}  // namespace vox
