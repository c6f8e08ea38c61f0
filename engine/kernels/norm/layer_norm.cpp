// What speech models need beyond the language models' operations: layer norms, gelu in its exact form, tanh.

#include "rows.h"

using namespace vox;

namespace {

// Writes (x - mean) / deviation * weight + bias. Two passes over the row: the sum of squares is taken about the mean, as
// torch does. `bias` may be null.
void layer_norm_row(const float *x, const float *weight, const float *bias, float *out, int64_t n, float eps) {
    constexpr int W = WIDE;
    int64_t i = 0;
    F<W> sums = {};
    for (; i + W <= n; i += W) sums += load<W>(x + i);
    float sum = reduce(sums);
    for (; i < n; i++) sum += x[i];
    float mean = sum / float(n);
    F<W> squares = {};
    for (i = 0; i + W <= n; i += W) {
        F<W> v = load<W>(x + i) - mean;
        squares = fma(v, v, squares);
    }
    float square = reduce(squares);
    for (; i < n; i++) square = fma(x[i] - mean, x[i] - mean, square);
    float scale = 1.0f / std::sqrt(square / float(n) + eps);
    for (i = 0; i + W <= n; i += W) {
        F<W> v = (load<W>(x + i) - mean) * scale * load<W>(weight + i);
        store<W>(out + i, bias ? v + load<W>(bias + i) : v);
    }
    for (; i < n; i++) out[i] = (x[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0.0f);
}

// x times the normal distribution's integral up to x, by Abramowitz and Stegun's 7.1.26: |error of erf| < 1.5e-7.
F<WIDE> gelu(F<WIDE> x) {
    constexpr int W = WIDE;
    F<W> z = x * 0.707106781f, size = z < 0.0f ? -z : z;
    F<W> t = 1.0f / fma(size, splat<W>(0.3275911f), splat<W>(1.0f));
    F<W> p = splat<W>(1.061405429f);
    p = fma(p, t, splat<W>(-1.453152027f));
    p = fma(p, t, splat<W>(1.421413741f));
    p = fma(p, t, splat<W>(-0.284496736f));
    p = fma(p, t, splat<W>(0.254829592f));
    F<W> tail = p * t * exp<W>(-(size * size)) * 0.5f;  // the integral from |x| on
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

template <class Function> void each(float *x, int64_t rows, int64_t n, Function function) {
    constexpr int W = WIDE;
    each_row(rows, 4 * n, [&](int64_t row) {
        float *at = x + row * n;
        int64_t i = 0;
        for (; i + W <= n; i += W) store<W>(at + i, function(load<W>(at + i)));
        if (i < n) {
            float tail[W] = {};
            for (int64_t j = i; j < n; j++) tail[j - i] = at[j];
            F<W> done = function(load<W>(tail));
            for (int64_t j = i; j < n; j++) at[j] = done[j - i];
        }
    });
}

}  // namespace

extern "C" void vox_layer_norm(const float *x, const float *weight, const float *bias, float *out, int64_t rows, int64_t n,
                               float eps) {
    each_row(rows, n, [&](int64_t row) { layer_norm_row(x + row * n, weight, bias, out + row * n, n, eps); });
}

extern "C" void vox_add_layer_norm(const float *x, float *residual, const float *weight, const float *bias, float *out,
                                   int64_t rows, int64_t n, float eps) {
    each_row(rows, n, [&](int64_t row) {
        const float *from = x + row * n;
        float *sum = residual + row * n;
        for (int64_t i = 0; i < n; i++) sum[i] += from[i];
        layer_norm_row(sum, weight, bias, out + row * n, n, eps);
    });
}

extern "C" void vox_gelu(float *x, int64_t rows, int64_t n) { each(x, rows, n, gelu); }

extern "C" void vox_tanh(float *x, int64_t rows, int64_t n) {
    each(x, rows, n, [](F<WIDE> v) { return tanh<WIDE>(v); });
}
