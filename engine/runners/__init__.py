"""A plan in, its results out: one runner for each kind of model."""
