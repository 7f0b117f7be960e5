"""Keras on PyTorch. The other backends have the same files and names, in the same order."""

from keras_twin import KERAS
from pytorch_impl import SUPPORTED as FRAMEWORK

SUPPORTED = {**FRAMEWORK, **KERAS}
"""(lowest supported version, first later version that is not supported), by distribution."""
IMPORTS = ("keras_twin", "pytorch_impl")
"""Other packages whose code the twin runs. A digest of its code covers them."""
