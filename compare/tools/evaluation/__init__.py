"""Trained models: final scores, conversion, prediction and inference times."""

COMMANDS = ("evaluate", "convert", "predict", "infer")
