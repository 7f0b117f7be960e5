import sys

from tests.compare.twins import learner

if __name__ == "__main__":
    sys.exit(learner.main("right"))
