"""A language model on a CUDA device: rows that keep their place, decode steps as graphs, one wait a step."""
