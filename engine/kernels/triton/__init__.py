"""The operations in Triton, for CUDA: kernels and their launches, bare. The files above check and choose."""
