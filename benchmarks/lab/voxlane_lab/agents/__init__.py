"""Servers that are wrong on purpose, to try the lab on: one good agent and ten bad ones, in every dialect."""
