"""Model files in, named tensors out. This package knows file formats, not how a model computes."""
