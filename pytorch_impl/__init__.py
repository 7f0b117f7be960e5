"""One framework's side of every run; its twin beside it has the same files, names and order."""
