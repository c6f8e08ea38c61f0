// The operations as the Python side calls them; stack.cpp calls them too.
#pragma once

#include <cstdint>

extern "C" {
void vox_packed_linear(const float *x, const void *parts, int64_t count, const float *bias, float *out, int64_t tokens,
                       int64_t outputs, int64_t inputs);
void vox_packed_embed(const int64_t *ids, const void *table, float *out, int64_t tokens, int64_t inputs);
void vox_linear(const float *x, const void *weight, int64_t is_bf16, const float *bias, float *out, int64_t tokens,
                int64_t outputs, int64_t inputs);
void vox_rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t n, float eps);
void vox_add_rms_norm(const float *x, float *residual, const float *weight, float *out, int64_t rows, int64_t n, float eps);
void vox_silu_mul(const float *gate_up, float *out, int64_t rows, int64_t n);
void vox_gelu_tanh_mul(const float *gate_up, float *out, int64_t rows, int64_t n);
void vox_rope_write(const float *qkv, float *q, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                    const float *cos, const float *sin, const int32_t *positions, const int32_t *slots, int64_t type,
                    void *k_page, void *v_page, void *k_scale, void *v_scale, int64_t block_tokens, const float *q_norm,
                    const float *k_norm, float eps);
void vox_paged_attention(const float *q, float *out, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t type,
                         void *k, void *v, void *k_scale, void *v_scale, int64_t block_tokens, const int32_t *positions,
                         const int32_t *query_starts, const int32_t *context_lengths, const int32_t *block_tables,
                         int64_t rows, int64_t table_columns, float scale, int64_t window, int64_t causal, float softcap,
                         const int32_t *thinned_from, float thinned_log);
void vox_short_conv(const float *bcx, const float *weight, const float *bias, float *out, int64_t tokens, int64_t channels,
                    int64_t taps, float *vectors, int64_t slots, int64_t block_tokens, const int32_t *positions,
                    const int32_t *places, const int32_t *query_starts, const int32_t *block_tables, int64_t rows,
                    int64_t table_columns);
}
