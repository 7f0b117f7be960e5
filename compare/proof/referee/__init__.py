"""A third opinion: the same training in plain NumPy, written as a textbook would, with nothing shared but the architecture."""
