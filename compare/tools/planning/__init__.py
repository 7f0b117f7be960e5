"""Which parallel mode pays: predicted, measured, and compared."""

COMMANDS = ("plan", "scaling", "stragglers")
