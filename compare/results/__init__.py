"""The folder of a comparison: workspace, plan, runs, signature."""
