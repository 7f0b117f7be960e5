"""Commands of a twin in one process, without a framework."""

import pytest

from common import spec
from common.machine import machine
from common.processes import commands
from tests.support import processes
from tests.support.comparisons import with_fields

MATCH = """
import argparse, sys
from types import SimpleNamespace
from common.processes import commands
configure = lambda run_spec: print(run_spec.cores, file=sys.stderr)
twin = SimpleNamespace(open_model=lambda ask: None, configure=configure)
sys.exit(commands.match("a twin", lambda: twin, argparse.Namespace()))
"""


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_each_of_two_frameworks_has_half_of_the_cores_and_one_at_least(cores: int, threads: int) -> None:
    run_spec = with_fields(spec.build({"cores": 1}), cores=cores)
    assert commands.with_half_of_the_cores(run_spec).cores == threads


def test_match_gives_a_framework_half_of_the_cores() -> None:
    assert int(processes.python("-c", MATCH).succeeded().stderr) == max(machine.available_cores() // 2, 1)
