"""This machine: cores, memory, rates, this process's place among the ranks of a run, and what belongs to the run alone."""
