"""A twin that does nothing, for ever, and says which process does it."""

import os
import time
from pathlib import Path

Path(os.environ["HANGING_PID"]).write_text(str(os.getpid()))
time.sleep(600)
