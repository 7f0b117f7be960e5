"""The training loop that both twins share, and what it measures."""
