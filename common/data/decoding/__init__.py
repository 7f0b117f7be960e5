"""From the bytes of an image file to pixels."""
