"""Do two commands of anybody's train the same? Their losses, step by step, against what rounding can do."""

COMMANDS = ("same",)
