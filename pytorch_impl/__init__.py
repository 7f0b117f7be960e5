"""One framework's part of every run. The other twin has the same files and names, in the same order."""

SUPPORTED = {"torch": ("2.13", "2.16"), "torchvision": ("0.28", "0.30")}
"""(lowest supported version, first later version that is not supported), by distribution."""
