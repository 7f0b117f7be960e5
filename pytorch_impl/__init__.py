"""One framework's side of every run. Its twin has the same files and names, in the same order."""
