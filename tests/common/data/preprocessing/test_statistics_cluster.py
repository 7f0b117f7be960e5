"""Scans by dask.distributed: processes, a cluster that stands, and workers that die."""

import shutil
import time
from pathlib import Path
from typing import Any

import dask.config
import distributed
import psutil
import pytest

from common.data.preprocessing import dask_scan, scan
from common.data.preprocessing.dask_scan import SchedulerError
from common.data.sources import Encoded
from common.watching import watchdog
from tests.common.data.preprocessing.made_up_cluster import Cluster
from tests.common.data.preprocessing.made_up_scan import jpeg, oracle, packed, repeated
from tests.common.processes import deadly
from tests.support import processes

CHUNK_BYTES = 10_000


def scanning(files: Encoded, workers: int, scheduler: str) -> Any:
    return dask_scan.scanning(files, 24, workers, scheduler, chunk_bytes=CHUNK_BYTES)


@pytest.fixture
def files(tmp_path: Path) -> Encoded:
    """600 images in some tens of stretches."""
    return repeated(packed(tmp_path / "packed", [jpeg(seed) for seed in range(20)]), 30)


def test_a_cluster_finds_the_same_sums(cluster: Cluster, files: Encoded) -> None:
    assert len(scan.parts(files, CHUNK_BYTES)) > 20
    for workers in (1, 2):
        with scanning(files, workers, cluster.address) as run:
            assert run() == oracle(files, 24)


def test_a_cluster_is_left_as_it_was(cluster: Cluster, files: Encoded) -> None:
    allowed = cluster.allowed_failures
    with scanning(files, 1, cluster.address) as run:
        assert cluster.allowed_failures == dask_scan.ALLOWED_FAILURES
        run()
    assert cluster.allowed_failures == allowed
    assert len(cluster.workers()) == 2


def test_a_cluster_tells_its_workers_and_cores(cluster: Cluster) -> None:
    workers, cores = dask_scan.workers_and_cores(cluster.address)
    assert workers == 2 and cores >= 1


def test_more_workers_than_the_cluster_has_are_refused(cluster: Cluster, files: Encoded) -> None:
    with pytest.raises(SchedulerError) as caught, scanning(files, 3, cluster.address):
        pass
    assert "3 workers" in str(caught.value) and "Received: 2." in str(caught.value)


@pytest.mark.slow
def test_processes_find_the_same_sums(files: Encoded) -> None:
    with scanning(files, 2, "processes") as run:
        assert run() == oracle(files, 24)


@pytest.mark.slow
@pytest.mark.parametrize("patience", [dask_scan.ALLOWED_FAILURES, 3])
def test_a_worker_killed_ten_times_in_the_middle_costs_only_time_but_not_with_dasks_own_patience(
    cluster: Cluster, files: Encoded, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    deaths = plant_deaths(files, 10)
    monkeypatch.setattr(dask_scan, "file_sums", deadly.sums)  # planted: some files kill the worker that reads them
    with scanning(files, 2, cluster.address) as run:
        cluster.allow_failures(patience)
        if patience == 3:
            with pytest.raises(distributed.KilledWorker):
                run()
        else:
            assert run() == oracle(files, 24)
            assert len(list(deaths.iterdir())) == 10


def plant_deaths(files: Encoded, count: int) -> Path:
    """A stretch in the middle, none that the warm-up scans, kills its worker so many times."""
    stretches = scan.parts(files, CHUNK_BYTES)
    warmed_up = {int(part.offsets[0]) for part in stretches[:2]}
    middle = next(part for part in stretches[len(stretches) // 2 :] if int(part.offsets[0]) not in warmed_up)
    return deadly.plan(files, middle, count)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates by openssl")
def test_a_cluster_may_be_protected_by_dask_s_own_tls(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    words = f"req -x509 -newkey rsa:2048 -nodes -subj /CN=cluster -keyout {key} -out {certificate}".split()
    processes.run(["openssl", *words]).succeeded()
    settings = {"distributed.comm.tls.ca-file": certificate}
    for role in ("client", "scheduler", "worker"):
        settings |= {f"distributed.comm.tls.{role}.key": key, f"distributed.comm.tls.{role}.cert": certificate}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tls", dashboard_address="127.0.0.1:0"
        ) as tls,
    ):
        assert tls.scheduler_address.startswith("tls://")
        workers, _ = dask_scan.workers_and_cores(tls.scheduler_address)
        assert workers == 1


@pytest.mark.slow
def test_processes_that_nobody_asks_are_idle_to_the_watchdog() -> None:
    """A cluster stays open while a run trains. It used 8 to 13 % of a core for looking at itself: no hang was found then."""
    own = psutil.Process()

    def used() -> float:
        times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    with dask_scan.client(2, "processes"):
        time.sleep(2)
        before, since = used(), time.monotonic()
        time.sleep(6)
        assert (used() - before) / (time.monotonic() - since) < watchdog.IDLE_CPU
