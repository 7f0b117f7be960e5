"""Twins as processes: described, started, measured; and the rows that they run."""
