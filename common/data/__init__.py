"""From files to batches: sources, decoding, preprocessing, the cache, and the order of samples."""
