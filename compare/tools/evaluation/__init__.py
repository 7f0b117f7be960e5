"""Trained models: final scores, conversion, prediction and inference times."""
