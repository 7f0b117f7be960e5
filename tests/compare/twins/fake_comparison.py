"""The process of `api.run`, with the two fake twins on a machine of four cores."""

import pytest

from common.machine import machine, rates
from compare.comparison import run_process
from compare.reporting import plots
from compare.running import launch
from tests.compare import conftest


def pretend() -> None:
    """Fake what the fixture `fake_twins` fakes, in this process."""
    patch = pytest.MonkeyPatch()
    patch.setattr(plots, "write_all", conftest.write_empty)
    patch.setattr(launch, "FRAMEWORKS", conftest.FAKES)
    patch.setattr(machine, "available_cores", lambda: 4)
    patch.setattr(rates, "measure_in_subprocess", conftest.measured_rates)


if __name__ == "__main__":
    pretend()
    run_process.main()
