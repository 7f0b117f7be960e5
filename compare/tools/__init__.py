"""Users of the core: one folder for each tool. The core imports none of them."""
