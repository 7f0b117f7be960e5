"""Shared parts of all commands: options, errors and exit codes, interrupts, progress, presets, text and statistics."""
