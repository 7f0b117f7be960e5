"""The training loop that both twins share, and its measurements."""
