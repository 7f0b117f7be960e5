"""One framework's side of every run. Its twin has the same files and names, in the same order."""

SUPPORTED = {"tensorflow": ("2.20", "2.22"), "keras": ("3.10", "3.16")}
"""Distribution: (the lowest version that the twin runs on, the first later one that it does not)."""
