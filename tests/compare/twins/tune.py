"""`compare tune` with a learning twin, which the processes that Dask spawns from this one know too."""

import sys

from compare.running import launch

launch.FRAMEWORKS.clear()
launch.FRAMEWORKS["left"] = "tests.compare.twins.learner_left"

if __name__ == "__main__":
    from compare.__main__ import app

    app(["tune", *sys.argv[1:]])
