"""Memory of a run of several processes: what they share counts once in PSS, and in each of them in RSS."""

import pytest

from common.machine import machine
from tests.support import processes

SHARED_MIB = 64
PAIR = f"""
import json, mmap, os
from common.machine import machine

def memory():
    return machine.proportional_memory_mib(), machine.peak_memory_mib()

def touch():
    for page in range(0, len(shared), mmap.PAGESIZE):
        shared[page] = 1

shared = mmap.mmap(-1, {SHARED_MIB} * 2**20)
(asked, ask), (told, tell) = os.pipe(), os.pipe()
if (child := os.fork()) == 0:
    os.read(asked, 1)
    touch()
    os.write(tell, b".")
    os.read(asked, 1)
    os._exit(0)
before = memory()
touch()
own = memory()
os.write(ask, b".")
os.read(told, 1)
both = memory()
os.write(ask, b".")
os.waitpid(child, 0)
print(json.dumps([before, own, both]))
"""


@pytest.mark.skipif(machine.proportional_memory_mib() is None, reason="the system has no PSS")
def test_a_mapping_that_two_processes_share_counts_once_in_pss_and_twice_in_rss() -> None:
    before, own, both = processes.python("-c", PAIR).succeeded().json
    (pss_of_one, rss_of_one), (pss, rss) = (
        [now - then for now, then in zip(each, before, strict=True)] for each in (own, both)
    )
    assert [pss_of_one, rss_of_one] == pytest.approx([SHARED_MIB, SHARED_MIB], rel=0.1)
    assert pss == pytest.approx(SHARED_MIB, rel=0.1)
    assert rss == pytest.approx(2 * SHARED_MIB, rel=0.1)
