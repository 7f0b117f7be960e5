"""Contents of a data set: exploration, duplicates, statistics, the cache."""

COMMANDS = ("data", "preprocess", "cache")
