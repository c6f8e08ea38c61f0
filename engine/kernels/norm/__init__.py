"""Operations on one row at a time: norms and activations."""
