"""What happens to data once: statistics, normalisation, affine maps."""
