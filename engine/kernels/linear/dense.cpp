// Products with float32 or bfloat16 weights as torch lays them out, [out, in].
//
// Each output is one dot product: lanes along the inputs, then reduce(), then what is left over, then the bias. A tile of
// four outputs and four tokens shares the loads and changes nothing in that order.

#include <algorithm>

#include "ops.h"
#include "pool.h"
#include "simd.h"

namespace vox {
namespace {

constexpr int SIDE = 4;
constexpr int64_t TOKEN_BLOCK = 64;  // tokens that stay in the second cache while all weights pass by

template <class Weight> struct Product {
    const float *x;
    const Weight *weight;
    const float *bias;
    float *out;
    int64_t tokens, outputs, inputs;

    template <int NT, int NO> void tile(int64_t token, int64_t output) const {
        constexpr int W = WIDE;
        F<W> sums[NT][NO] = {};
        const float *a = x + token * inputs;
        const Weight *b = weight + output * inputs;
        int64_t k = 0;
        for (; k + W <= inputs; k += W) {
            F<W> left[NT];
            for (int t = 0; t < NT; t++) left[t] = load<W>(a + t * inputs + k);
            for (int o = 0; o < NO; o++) {
                F<W> right = load<W>(b + o * inputs + k);
                for (int t = 0; t < NT; t++) sums[t][o] = fma(left[t], right, sums[t][o]);
            }
        }
        for (int t = 0; t < NT; t++)
            for (int o = 0; o < NO; o++) {
                float sum = reduce(sums[t][o]);
                for (int64_t i = k; i < inputs; i++) sum = fma(a[t * inputs + i], widen(b[o * inputs + i]), sum);
                out[(token + t) * outputs + output + o] = bias ? sum + bias[output + o] : sum;
            }
    }

    template <int NT> void strip(int64_t token, int64_t first, int64_t last) const {
        int64_t output = first;
        for (; output + SIDE <= last; output += SIDE) tile<NT, SIDE>(token, output);
        for (; output < last; output++) tile<NT, 1>(token, output);
    }

    void block(int64_t first, int64_t last) const {
        for (int64_t start = 0; start < tokens; start += TOKEN_BLOCK) {
            int64_t end = std::min(tokens, start + TOKEN_BLOCK);
            for (int64_t output = first; output < last; output += SIDE) {
                int64_t stop = std::min(last, output + SIDE), token = start;
                for (; token + SIDE <= end; token += SIDE) strip<SIDE>(token, output, stop);
                for (; token < end; token++) strip<1>(token, output, stop);
            }
        }
    }

    void run() const {
        int64_t strips = (outputs + SIDE - 1) / SIDE, step = std::max<int64_t>(1, strips / (threads() * 6)) * SIDE;
        parallel((outputs + step - 1) / step,
                 [&](int64_t unit) { block(unit * step, std::min(outputs, (unit + 1) * step)); });
    }
};

}  // namespace
}  // namespace vox

extern "C" void vox_linear(const float *x, const void *weight, int64_t is_bf16, const float *bias, float *out,
                           int64_t tokens, int64_t outputs, int64_t inputs) {
    using namespace vox;
    if (is_bf16)
        Product<bf16>{x, static_cast<const bf16 *>(weight), bias, out, tokens, outputs, inputs}.run();
    else
        Product<float>{x, static_cast<const float *>(weight), bias, out, tokens, outputs, inputs}.run();
}
