"""This machine: cores, memory, rates, and this process's place among the ranks of a run."""
