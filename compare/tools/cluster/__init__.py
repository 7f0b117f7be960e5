"""Comparisons of a matrix on other machines: one job each, by Slurm or by the workers of a Dask cluster."""

COMMANDS = ()
OTHER_MACHINES = "spread"
"""Module that runs `run --on`, see `compare.comparison.other_machines`."""
