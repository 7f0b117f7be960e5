"""The command line: one frame for all commands, option types and rules, exit codes, interrupts, progress, words."""
