"""One framework's side of every run. Its twin has the same files and names, in the same order."""

SUPPORTED = {"torch": ("2.13", "2.16"), "torchvision": ("0.28", "0.30")}
"""Distribution: (lowest supported version, first later version that is not supported)."""
