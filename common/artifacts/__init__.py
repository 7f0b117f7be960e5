"""Files that are written and read back: results, events, checkpoints, trained models."""
