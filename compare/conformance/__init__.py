"""Does a twin keep the contract? Any installed twin is tried over it."""
