"""Did a change make training slower? Revisions, stored results and history."""

COMMANDS = ("regress", "bisect", "history")
