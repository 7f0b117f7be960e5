"""Comparisons of many machines: one answer from all of them, and one page that lists them."""

COMMANDS = ("merge", "gallery")
