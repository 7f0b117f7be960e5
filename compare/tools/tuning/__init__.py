"""Hyper-parameter search in every framework."""
