"""Builds a running engine from settings: finds, loads, checks and measures the models."""
