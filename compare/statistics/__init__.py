"""Spreads, paired ratios, sequential verdicts, and their words."""
