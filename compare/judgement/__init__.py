"""Figures and statements from stored results: what was measured, and what it allows to be said."""
