"""What both frameworks share: the spec, the data, the order, the initial weights, the clock. No framework in here."""

import os
import sys

USER_PATH = "CONVTWINS_USER_PATH"
"""Variable: the caller's folder, for models of their own. It comes last, so that no file in it is taken for a library."""

if (_folder := os.environ.get(USER_PATH)) and _folder not in sys.path:
    sys.path.append(_folder)
