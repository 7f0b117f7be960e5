"""Is it the same training? The ladder of proof, and the layers that each framework built."""
