"""Published reports: their figures as data, their runs reproduced, and verdicts on their claims."""

COMMANDS = ("study", "reproduce")
