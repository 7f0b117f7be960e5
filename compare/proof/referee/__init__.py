"""The referee: the same training in plain NumPy, written as a textbook would. It shares nothing but the architecture."""
