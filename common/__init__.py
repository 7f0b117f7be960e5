"""All that the frameworks share: the spec, the data, the order, the initial weights, the clock. No framework is imported."""

import os
import sys

USER_PATH = "CONVTWINS_USER_PATH"
"""Environment variable with the caller's folder, for the user's own models. It is last on the path, so that no file in it hides
a library."""

if (_folder := os.environ.get(USER_PATH)) and _folder not in sys.path:
    sys.path.append(_folder)
