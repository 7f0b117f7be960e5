"""The TensorFlow twin."""
