"""Hyper-parameter search in every framework."""

COMMANDS = ("tune",)
