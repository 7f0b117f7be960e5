"""Twins started as processes, and their results stored in a folder."""
