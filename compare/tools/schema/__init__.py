"""JSON Schemas of the files that the suite reads and writes."""

COMMANDS = ("schema",)
