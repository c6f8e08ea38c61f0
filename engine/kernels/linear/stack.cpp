// All layers of a decoder in one call: the operations of the other files in the order of the model's own loop.
//
// It adds no arithmetic, so its bits are those of the loop. What it saves is the way from Python into each of nine
// operations a layer: about 10 microseconds each, a third of the time of a single-row step of a small model.

#include <algorithm>
#include <vector>

#include "ops.h"

namespace {

struct Matrix {
    int64_t kind;  // 0: float32, 1: bfloat16, 2: packed
    const void *data;  // numbers, or the parts of a packed matrix
    int64_t parts;
    const float *bias;
    int64_t outputs, inputs;

    void apply(const float *x, float *out, int64_t tokens) const {
        if (kind <= 1) vox_linear(x, data, kind, bias, out, tokens, outputs, inputs);
        else vox_packed_linear(x, data, parts, bias, out, tokens, outputs, inputs);
    }
};

struct Layer {
    Matrix mix, out, gate_up, down;
    const float *after_attention_norm, *mlp_norm, *after_mlp_norm, *next_norm;
    const float *q_norm, *k_norm, *cos, *sin;  // of attention
    const float *taps, *taps_bias;             // of a convolution; null: the layer has attention
    int64_t window, tap_count;
};

struct LayerPages {
    void *k, *v, *k_scale, *v_scale;  // of attention
    float *vectors;                   // of a convolution
    int64_t slots;
};

struct Model {
    const Layer *layers;
    int64_t count, heads, kv_heads, head_dim, hidden, gelu;
    float eps, scale, softcap;
    const float *first_norm;
};

struct Step {
    const LayerPages *pages;
    int64_t page_type, block_tokens;
    const int32_t *positions, *slots, *query_starts, *context_lengths, *block_tables;
    int64_t tokens, rows, table_columns;
};

float *buffer(std::vector<float> &store, int64_t size) {
    if (store.size() < size_t(size)) store.resize(size_t(size));
    return store.data();
}

void attend(const Layer &layer, const LayerPages &p, const Model &m, const Step &s, const float *qkv, float *q, float *out) {
    vox_rope_write(qkv, q, s.tokens, m.heads, m.kv_heads, m.head_dim, layer.cos, layer.sin, s.positions, s.slots, s.page_type,
                   p.k, p.v, p.k_scale, p.v_scale, s.block_tokens, layer.q_norm, layer.k_norm, m.eps);
    vox_paged_attention(q, out, m.heads, m.kv_heads, m.head_dim, s.page_type, p.k, p.v, p.k_scale, p.v_scale, s.block_tokens,
                        s.positions, s.query_starts, s.context_lengths, s.block_tables, s.rows, s.table_columns, m.scale,
                        layer.window, 1, m.softcap, nullptr, 0.0f);
}

void convolve(const Layer &layer, const LayerPages &p, const Model &m, const Step &s, const float *bcx, float *out) {
    vox_short_conv(bcx, layer.taps, layer.taps_bias, out, s.tokens, m.hidden, layer.tap_count, p.vectors, p.slots,
                   s.block_tokens, s.positions, s.slots, s.query_starts, s.block_tables, s.rows, s.table_columns);
}

}  // namespace

// `residual` [tokens, hidden] holds the embedded tokens and is used up; `x` receives the normed hidden rows.
extern "C" void vox_stack(const Model *model, const Step *step, float *residual, float *x) {
    static thread_local std::vector<float> stores[3];
    const Model &m = *model;
    const Step &s = *step;
    int64_t t = s.tokens, width = 0, attended = m.heads * m.head_dim, inner = 0;
    for (int64_t n = 0; n < m.count; n++) {
        width = std::max({width, m.layers[n].mix.outputs, m.layers[n].gate_up.outputs});
        inner = std::max({inner, m.layers[n].down.inputs, m.layers[n].out.inputs});
    }
    float *wide = buffer(stores[0], t * width), *narrow = buffer(stores[1], t * inner);
    float *q = buffer(stores[2], t * attended);
    vox_rms_norm(residual, m.first_norm, x, t, m.hidden, m.eps);
    for (int64_t n = 0; n < m.count; n++) {
        const Layer &layer = m.layers[n];
        const LayerPages &p = s.pages[n];
        layer.mix.apply(x, wide, t);
        if (layer.taps) convolve(layer, p, m, s, wide, narrow);
        else attend(layer, p, m, s, wide, q, narrow);
        layer.out.apply(narrow, x, t);
        if (layer.after_attention_norm) vox_rms_norm(x, layer.after_attention_norm, x, t, m.hidden, m.eps);
        vox_add_rms_norm(x, residual, layer.mlp_norm, x, t, m.hidden, m.eps);
        layer.gate_up.apply(x, wide, t);
        (m.gelu ? vox_gelu_tanh_mul : vox_silu_mul)(wide, narrow, t, layer.down.inputs);
        layer.down.apply(narrow, x, t);
        if (layer.after_mlp_norm) vox_rms_norm(x, layer.after_mlp_norm, x, t, m.hidden, m.eps);
        vox_add_rms_norm(x, residual, layer.next_norm, x, t, m.hidden, m.eps);
    }
}
