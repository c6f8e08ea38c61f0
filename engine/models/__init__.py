"""One file or package per architecture family: a batch of tokens in, logits out, through the kernels."""
