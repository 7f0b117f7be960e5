"""What every command needs: options, errors and exit codes, interrupts, progress, presets, text and statistics."""
