"""Is a port the same model? Layers and parameters aligned, a short ladder climbed, and causes named."""

COMMANDS = ("match",)
