"""Checks of an installed twin against the contract of all twins."""

COMMANDS = ("conformance",)
