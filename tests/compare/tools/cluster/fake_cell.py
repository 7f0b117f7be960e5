"""The process of a job, with the two fake twins on a machine of four cores."""

import sys
from pathlib import Path

from compare.tools.cluster import cell_process
from tests.compare.twins import fake_comparison

if __name__ == "__main__":
    fake_comparison.pretend()
    cell_process.main(Path(sys.argv[1]), *sys.argv[2:])
