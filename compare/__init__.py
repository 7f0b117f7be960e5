"""The comparison: the only part that sees both frameworks, and it imports neither."""
