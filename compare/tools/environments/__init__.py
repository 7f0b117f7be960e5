"""Environments for contestants: made from a lock, listed, checked."""

COMMANDS = ("env",)
