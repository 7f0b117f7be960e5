"""What is written and read back: results, events, checkpoints, trained models."""
