"""Deadlocks and races of training code, found in its source."""
