"""`python -m <twin> describe | models | run | trace | serve-trials | preprocess | score | infer | write | read`."""

import sys

from keras_twin import command
from keras_twin.on_tensorflow import switches

if __name__ == "__main__":
    sys.exit(command.main("tensorflow", switches))
