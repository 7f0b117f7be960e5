"""Does the comparison keep its promises on this machine? Known differences, and none, judged by its own verdicts."""

COMMANDS = ("selftest",)
