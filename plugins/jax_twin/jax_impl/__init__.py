"""The JAX twin. It has the same modules and public names as the others, as far as JAX needs them."""
