"""Can this machine run Convtwins, and what would be missing?"""

COMMANDS = ("doctor",)
