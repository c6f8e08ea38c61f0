"""Model files in, named tensors out. This package knows file formats; it does not know architectures' mathematics."""
