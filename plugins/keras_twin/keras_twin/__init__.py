"""The Keras twins: one model and one training, on the backend that a contestant names."""

KERAS = {"keras": ("3.15", "3.16")}
"""(lowest supported version, first later version that is not supported), by distribution. Each backend adds its own."""
