"""Contents of a data set: exploration, duplicates, statistics, the cache."""
