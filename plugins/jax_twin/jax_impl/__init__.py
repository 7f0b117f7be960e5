"""The JAX twin. It has the same modules and public names as the others, as far as JAX needs them."""

SUPPORTED = {"jax": ("0.10", "0.11"), "jaxlib": ("0.10", "0.11")}
"""(lowest supported version, first later version that is not supported), by distribution."""
