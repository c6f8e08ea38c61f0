"""Convolutions over sound."""
