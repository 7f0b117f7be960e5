"""The fastest settings of each framework on this machine."""

COMMANDS = ("optimize", "layers")
