// Norm and rotation of heads, and the write of keys and values into their pages.

#include <algorithm>

#include "ops.h"
#include "pages.h"
#include "rows.h"

namespace vox {
namespace {

constexpr int64_t MAX_HEAD_DIM = 256;

void rotate(const float *x, const float *cos, const float *sin, float *out, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        out[i] = a * cos[i] - b * sin[i];
        out[half + i] = b * cos[i] + a * sin[i];
    }
}

void write(const Pages &pages, const float *x, void *page, bf16 *scales, int64_t vector) {
    int64_t n = pages.head_dim;
    if (pages.type == FLOAT32) {
        std::copy_n(x, n, static_cast<float *>(page) + vector * n);
        return;
    }
    if (pages.type == BFLOAT16) {
        bf16 *to = static_cast<bf16 *>(page) + vector * n;
        for (int64_t i = 0; i < n; i++) to[i] = narrow(x[i]);
        return;
    }
    float largest = largest_magnitude(x, n);
    scales[vector] = narrow(largest / 127.0f);
    float scale = widen(scales[vector]), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    int8_t *to = static_cast<int8_t *>(page) + vector * n;
    for (int64_t i = 0; i < n; i++) {
        float scaled = std::min(127.0f, std::max(-127.0f, x[i] * inverse));  // NaN becomes -127 or 127
        to[i] = int8_t(int32_t(std::nearbyintf(scaled)));
    }
}

}  // namespace
}  // namespace vox

extern "C" void vox_rope_write(const float *qkv, float *q, int64_t tokens, int64_t heads, int64_t kv_heads,
                               int64_t head_dim, const float *cos, const float *sin, const int32_t *positions,
                               const int32_t *slots, int64_t type, void *k_page, void *v_page, void *k_scale,
                               void *v_scale, int64_t block_tokens, const float *q_norm, const float *k_norm, float eps) {
    using namespace vox;
    Pages pages{type,     k_page,       v_page,  static_cast<bf16 *>(k_scale), static_cast<bf16 *>(v_scale),
                kv_heads, block_tokens, head_dim};
    int64_t all = heads + 2 * kv_heads;
    each_row(tokens, 2 * all * head_dim, [&](int64_t t) {
        const float *row = qkv + t * all * head_dim;
        const float *c = cos + positions[t] * (head_dim / 2), *s = sin + positions[t] * (head_dim / 2);
        float normed[MAX_HEAD_DIM], turned[MAX_HEAD_DIM];
        for (int64_t h = 0; h < heads; h++) {
            const float *x = row + h * head_dim;
            if (q_norm) rms_norm_row(x, q_norm, normed, head_dim, eps), x = normed;
            rotate(x, c, s, q + (t * heads + h) * head_dim, head_dim / 2);
        }
        if (slots[t] < 0) return;
        for (int64_t h = 0; h < kv_heads; h++) {
            const float *x = row + (heads + h) * head_dim, *v = row + (heads + kv_heads + h) * head_dim;
            if (k_norm) rms_norm_row(x, k_norm, normed, head_dim, eps), x = normed;
            rotate(x, c, s, turned, head_dim / 2);
            int64_t vector = pages.vector(slots[t] / block_tokens, h, slots[t] % block_tokens);
            write(pages, turned, pages.k, pages.k_scale, vector);
            write(pages, v, pages.v, pages.v_scale, vector);
        }
    });
}
