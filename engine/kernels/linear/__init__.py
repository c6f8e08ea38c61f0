"""Matrix products: dense, packed, fused with what surrounds them, and whole layers in one call."""
