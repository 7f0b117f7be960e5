"""Networks as published reports really built them, where they are not the suite's own; see `compare.papers`."""
