"""Runners on a CUDA device: steps are CUDA graphs, and the host waits once per step."""
