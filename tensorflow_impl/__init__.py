"""One framework's part of every run. The other twin has the same files and names, in the same order."""

SUPPORTED = {"tensorflow": ("2.20", "2.22"), "keras": ("3.10", "3.16")}
"""(lowest supported version, first later version that is not supported), by distribution."""
