"""Keras on JAX. The other backends have the same files and names, in the same order."""

from keras_twin import KERAS

# The JAX twin prepares its batches and counts its devices. It is a package of its own, which may be missing here.
SUPPORTED = {"jax": ("0.10", "0.11"), "jaxlib": ("0.10", "0.11"), "convtwins-jax": ("0.1", "0.2"), **KERAS}
"""(lowest supported version, first later version that is not supported), by distribution."""
IMPORTS = ("keras_twin", "jax_impl")
"""Other packages whose code the twin runs. A digest of its code covers them."""
