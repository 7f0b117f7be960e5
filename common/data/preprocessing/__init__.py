"""Statistics of the pixels, normalisation, affine maps of augmentation."""
