"""The PyTorch twin."""
