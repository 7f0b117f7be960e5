"""Recordings of what the ranks of healthy, slow and stuck runs use of the machine, and what the rules of `watch` say of them.

    python -m plugins.hangs.research.footprints record DIR --framework pytorch
    python -m plugins.hangs.research.footprints record DIR --framework tensorflow

Each recording is a run of one mode where one thing is planted, see `tests.planted.hanging`, looked at from its start. At
each look it holds what the rules say, with each of `PATIENCES`. Control groups and network namespaces need root. Recordings
that DIR has already are not made again.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from common import spec
from convtwins_hangs.watching.member import JobMember
from convtwins_hangs.watching.verdict import judge_job
from convtwins_hangs.watching.watcher import Watcher
from tests.control_groups import control_group
from tests.namespaces import joined_hosts
from tests.twins.runs import PROJECT, SETTINGS, Run

INTERVAL = 0.25
AFTER_SECONDS, FAULT_SECONDS, HEALTHY_SECONDS = 3.0, 15.0, 60.0
"""Seconds of training before the planted fault, after it, and in a run without one."""
START_SECONDS = 120.0
"""Longest wait until the planted fault has begun, in seconds."""
HOGS = 6
LOG_CHARACTERS = 2000
PATIENCES = (4.0, 10.0)
GROUP_BYTES, FILE_BYTES = 48 * 2**20, 256 * 2**20

FAULTS = {
    "normal": "nothing",
    "slow": "slow_steps",
    "starved": "nothing",
    "swapping": "paging",
    "stopped": "stopped",
    "spinning": "spinning",
    "lock": "two_locks",
    "queue": "full_queue",
    "collective": "message",
    "livelocked": "livelock",
    "network_cut": "nothing",
}
"""Kind of recording: what is planted in a rank. If it is nothing, the fault comes from outside at that moment."""


class Wanted(NamedTuple):
    framework: str
    mode: str
    fault: str
    number: int

    @property
    def name(self) -> str:
        return "-".join(map(str, self))

    @property
    def fields(self) -> dict[str, Any]:
        given = spec.with_variant({"pipeline": {"micro_batches": 2}}, self.mode, 2)
        return given | {"cores": SETTINGS["cores"], "epochs": 400_000, "hang_seconds": 600.0}


def wanted(framework: str, rounds: int) -> Iterator[Wanted]:
    for number in range(rounds):
        for fault in FAULTS:
            for mode, traits in spec.MODES.items():
                if fault == "network_cut" and not traits.runs_across_hosts:
                    continue
                repeats = 4 if fault == "network_cut" else 1  # few modes run over hosts
                for repeat in range(repeats):
                    yield Wanted(framework, mode, fault, repeats * number + repeat)


def record(one: Wanted, out: Path, hosts: list[str], group: Path | None) -> None:
    """Make one recording. It is written when it is whole."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as undo:
        begun = Path(folder) / "planted"
        planted = {
            "CONVTWINS_PLANTED": FAULTS[one.fault],
            "CONVTWINS_PLANTED_AT": str(begun),
            "CONVTWINS_PLANTED_AFTER": str(AFTER_SECONDS),
            "CONVTWINS_PLANTED_GROUP": str(group),
            "CONVTWINS_PLANTED_PAGES": str(out / "pages.bin"),
            "TMPDIR": folder,  # it is killed, and would leave files
        }
        fields = one.fields | ({"hosts": hosts} if hosts else {})
        if hosts:
            planted["CONVTWINS_RSH"] = "ip netns exec {host}"
        run = Run(one.framework, Path(folder) / "run", fields, **planted)
        undo.callback(_end, run)
        ranks = len(importlib.import_module(f"{one.framework}_impl.rendezvous").environments(spec.build(SETTINGS | fields)))
        found = _watched(one, run, begun, hosts, undo)
        if found is None:
            print(
                f"{one.name}: nothing began in {START_SECONDS:g} s, or the run ended: {run.log[-LOG_CHARACTERS:]}", flush=True
            )
            return
    # There may be one process; and both ends of a connection that is cut may be named.
    culprit = f"rank {ranks - 1}" if ranks and one.fault != "network_cut" else None
    document = one._asdict() | found | {"culprit": culprit, "load": psutil.getloadavg()[0], "cores": psutil.cpu_count()}
    path = out / f"{one.name}.json.gz"
    path.with_suffix(".new").write_bytes(gzip.compress(json.dumps(document).encode()))
    path.with_suffix(".new").rename(path)


def _watched(one: Wanted, run: Run, begun: Path, hosts: list[str], undo: ExitStack) -> dict[str, Any] | None:
    """Looks at the run, and when the fault began, in seconds of the same clock."""
    watcher = Watcher([run.process.pid], max(PATIENCES))
    undo.callback(watcher.close)
    looks: list[dict[str, Any]] = []
    started, fault = time.monotonic(), None
    while run.process.poll() is None:
        now = time.monotonic() - started
        watcher.look()
        members = watcher.ranks
        looks.append({"at": now, "ranks": {each.name: _seen(each) for each in members}})
        for patience in PATIENCES:
            verdict = judge_job(members, patience, patience / 2)
            looks[-1][f"rule {patience:g}"] = [verdict.state, list(verdict.ranks)]
        if fault is None and begun.exists():
            fault = now
            if one.fault == "starved":
                for _ in range(HOGS):
                    hog = undo.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                    undo.callback(hog.kill)
            if one.fault == "network_cut":
                switch = f"{hosts[0].rpartition('.')[0]}.switch"
                subprocess.run(["ip", "-netns", switch, "link", "set", "plug1", "down"], check=True)
        if fault is None and now > START_SECONDS:
            return None
        if fault is not None and now - fault > (HEALTHY_SECONDS if one.fault == "normal" else FAULT_SECONDS):
            return {"looks": looks, "begun": fault}
        time.sleep(max(0.0, started + now + INTERVAL - time.monotonic()))
    # A framework may notice it too, and end the run: TensorFlow does so, eight seconds after a rank was stopped.
    return None if fault is None else {"looks": looks, "begun": fault}


def _seen(member: JobMember) -> dict[str, Any]:
    """What a look shows of a rank."""
    if member.ended or not member.looks:
        return {"ended": member.ended}
    threads = [thread.state for each in member.footprints.values() for thread in each.threads]
    return {
        **member.looks[-1]._asdict(),
        "stopped": member.is_stopped,
        "states": {state: threads.count(state) for state in set(threads)},
        "resident": sum(each.resident_bytes for each in member.footprints.values()),
        "shared": sum(each.shared_bytes for each in member.footprints.values()),
        "swapped": sum(each.swap_bytes for each in member.footprints.values()),
        "marks": None if member.marks is None else list(member.marks),
    }


def _end(run: Run) -> None:
    for each in run.processes():
        each.kill()
    run.kill()


def _in_a_process(one: Wanted, out: Path) -> None:
    """Each recording has its own: a look counts all that its process has started, and a host is a namespace."""
    with ExitStack() as undo:
        hosts = [each.address for each in undo.enter_context(joined_hosts(2))] if one.fault == "network_cut" else []
        limit = {"memory.limit_in_bytes": str(GROUP_BYTES)}, {"memory.max": str(GROUP_BYTES)}
        group = undo.enter_context(control_group("memory", *limit, one.name)) if one.fault == "swapping" else None
        prefix = ["ip", "netns", "exec", hosts[0]] if hosts else []
        words = [*prefix, sys.executable, "-m", "plugins.hangs.research.footprints", "one", str(out), *map(str, one)]
        subprocess.run([*words, *hosts, f"--group={group or ''}"], cwd=PROJECT, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    all_of = commands.add_parser("record")
    all_of.add_argument("out", type=Path)
    all_of.add_argument("--framework", choices=["pytorch", "tensorflow"], required=True)
    all_of.add_argument("--rounds", type=int, default=2)
    all_of.add_argument("--at-once", type=int, default=1)
    all_of.add_argument("--fault", choices=FAULTS)
    single = commands.add_parser("one")
    single.add_argument("out", type=Path)
    single.add_argument("framework")
    single.add_argument("mode")
    single.add_argument("fault")
    single.add_argument("number", type=int)
    single.add_argument("hosts", nargs="*")
    single.add_argument("--group", default="")
    given = parser.parse_args()
    if given.command == "one":
        one = Wanted(given.framework, given.mode, given.fault, given.number)
        record(one, given.out, given.hosts, Path(given.group) if given.group else None)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    if not (given.out / "pages.bin").exists():
        with (given.out / "pages.bin").open("wb") as file:
            file.write(os.urandom(FILE_BYTES))
            os.fsync(file.fileno())
    missing = [
        each
        for each in wanted(given.framework, given.rounds)
        if not (given.out / f"{each.name}.json.gz").exists() and given.fault in (None, each.fault)
    ]
    with ThreadPoolExecutor(given.at_once) as pool:
        for each, _ in zip(missing, pool.map(_in_a_process, missing, itertools.repeat(given.out)), strict=False):
            print(each.name, flush=True)


if __name__ == "__main__":
    main()
