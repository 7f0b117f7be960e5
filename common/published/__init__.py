"""Networks as published reports built them, where they differ from the suite's own; see `compare.tools.papers`."""
