"""Comparisons of a matrix on other machines: one job each, by Slurm or by the workers of a Dask cluster."""
