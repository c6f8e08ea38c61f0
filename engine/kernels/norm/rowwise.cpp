// Norms and gates: operations that see one row at a time.

#include "ops.h"
#include "rows.h"

using namespace vox;

extern "C" void vox_rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t n, float eps) {
    each_row(rows, n, [&](int64_t row) { rms_norm_row(x + row * n, weight, out + row * n, n, eps); });
}

extern "C" void vox_add_rms_norm(const float *x, float *residual, const float *weight, float *out, int64_t rows, int64_t n,
                                 float eps) {
    each_row(rows, n, [&](int64_t row) {
        const float *from = x + row * n;
        float *sum = residual + row * n;
        for (int64_t i = 0; i < n; i++) sum[i] += from[i];
        rms_norm_row(sum, weight, out + row * n, n, eps);
    });
}

template <class Gate> static void gate_rows(const float *gate_up, float *out, int64_t rows, int64_t n, Gate gate) {
    constexpr int W = WIDE;
    each_row(rows, 4 * n, [&](int64_t row) {
        const float *g = gate_up + row * 2 * n, *up = g + n;
        float *to = out + row * n;
        int64_t i = 0;
        for (; i + W <= n; i += W) store<W>(to + i, gate(load<W>(g + i)) * load<W>(up + i));
        if (i < n) {
            float tail[W] = {};
            for (int64_t j = i; j < n; j++) tail[j - i] = g[j];
            F<W> gated = gate(load<W>(tail));
            for (int64_t j = i; j < n; j++) to[j] = gated[j - i] * up[j];
        }
    });
}

extern "C" void vox_silu_mul(const float *gate_up, float *out, int64_t rows, int64_t n) {
    gate_rows(gate_up, out, rows, n, [](F<WIDE> x) { return x / (exp<WIDE>(-x) + 1.0f); });
}

extern "C" void vox_gelu_tanh_mul(const float *gate_up, float *out, int64_t rows, int64_t n) {
    gate_rows(gate_up, out, rows, n, [](F<WIDE> x) {
        // (1 + tanh(y)) / 2 = 1 / (1 + e^-2y), which loses nothing where tanh is near -1.
        F<WIDE> inner = (x + x * x * x * 0.044715f) * 0.797884561f;
        return x / (exp<WIDE>(inner * -2.0f) + 1.0f);
    });
}
