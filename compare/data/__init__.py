"""What is in a data set: exploration, duplicates, statistics, the cache."""
