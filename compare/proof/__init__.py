"""Is it the same training? The ladder of proof, and what each framework built."""
