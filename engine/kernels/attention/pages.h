// One layer's keys and values as the Python side's Pages and Layout describe them.
#pragma once

#include "simd.h"

namespace vox {

enum PageType : int64_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

struct Pages {
    int64_t type;
    void *k, *v;            // [blocks, kv_heads, block_tokens, head_dim]
    bf16 *k_scale, *v_scale;  // [blocks, kv_heads, block_tokens], int8 pages only
    int64_t kv_heads, block_tokens, head_dim;

    // The number of the vector at (block, head, offset); times head_dim it is the place of its first element.
    int64_t vector(int64_t block, int64_t head, int64_t offset) const {
        return (block * kv_heads + head) * block_tokens + offset;
    }
};

}  // namespace vox
