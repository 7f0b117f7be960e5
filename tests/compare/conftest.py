import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from common.machine import machine, rates
from common.machine.rates import Rates
from common.spec import MODES, Mode
from compare.cli import terminal
from compare.cli.errors import FolderError
from compare.reporting import plots
from compare.reporting.document import Report
from compare.reporting.plots import Drawing
from compare.results import workspace
from compare.running import launch
from tests.compare import forked
from tests.compare.twins import fake
from tests.support.snapshots import screens

__all__ = ["screens"]

FAKES = {"left": "tests.compare.twins.left", "right": "tests.compare.twins.right"}


@pytest.fixture(scope="session", autouse=True)
def forks() -> Iterator[None]:
    """Fake twins cost no imports."""
    with pytest.MonkeyPatch.context() as patch:
        forked.install(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def fast_disk() -> Iterator[None]:
    """Nothing waits until a file is on the disk: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def empty_plots(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Plots are empty files, but where a test is marked `drawn`: they take nine tenths of the time of a report."""
    if request.node.get_closest_marker("drawn") is None:
        monkeypatch.setattr(plots, "write_all", write_empty)


@pytest.fixture
def everything() -> Iterator[None]:
    """As with `--full`."""
    terminal.show_all(True)
    yield
    terminal.show_all(False)


@pytest.fixture
def fake_twins(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Two frameworks that only pretend, on a machine of four cores; returns the patcher, to set how they behave."""
    monkeypatch.setattr(launch, "FRAMEWORKS", dict(FAKES))
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    monkeypatch.setattr(rates, "measure_in_subprocess", measured_rates)
    return monkeypatch


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the finished comparison of a module's tests lies, once the first of them has made it. Each works on a copy."""
    return tmp_path_factory.mktemp("made") / "out"


@pytest.fixture(scope="session")
def ssh_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key that signs without a passphrase."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("signatures need ssh-keygen, which is not here")
    path = tmp_path_factory.mktemp("key") / "alice"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each report that is delivered from now on: whether its folder is `locked` then, or `free`."""
    seen, deliver = list[str](), Report.deliver

    def watched(report: Report, folder: Path, *, as_json: bool) -> int:
        try:
            with workspace.locked(folder):
                seen.append("free")
        except FolderError as error:
            seen.append("locked" if "Another command works in" in str(error) else str(error))
        return deliver(report, folder, as_json=as_json)

    monkeypatch.setattr(Report, "deliver", watched)
    return seen


def write_empty(drawings: Mapping[str, Drawing], folder: Path) -> list[Path]:
    """Instead of `plots.write_all`: all of them, whether there is something to show or not."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{suffix}" for name in drawings for suffix in plots.FORMATS]
    for path in files:
        path.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>' if path.suffix == ".svg" else "")
    return files


def measured_rates(cores: int) -> Rates:
    """Of a machine that gains from every core."""
    return Rates(cores=cores, float32_gflops=100.0 * cores, float64_gflops=50.0 * cores, copy_gb_per_second=10.0 * cores)


def behave(monkeypatch: pytest.MonkeyPatch, **behaviours: str) -> None:
    """Set how fake runs behave: `left__serial__2="crash"` for the run of `left` in mode serial on 2 cores."""
    monkeypatch.setenv(
        "FAKE_TWIN_BEHAVIOUR", json.dumps({name.replace("__", "-"): value for name, value in behaviours.items()})
    )


def describe_as(monkeypatch: pytest.MonkeyPatch, framework: str, **fields: object) -> None:
    """Let a fake twin describe itself with these fields. Those that it has otherwise stay."""
    describe = fake.describe
    monkeypatch.setattr(
        fake, "describe", lambda name, behaviours: describe(name, behaviours) | (fields if name == framework else {})
    )


@pytest.fixture
def gossip() -> Iterator[Mode]:
    """A registered mode that no twin, tool or page knows."""
    mode = Mode(
        name="gossip",
        variant="gossip",
        divides=frozenset({"batch"}),
        processes="each",
        needs="two machines that talk",
        not_serial_because="each replica averages with one neighbour",
    )
    with MODES.extended(mode):
        yield mode


def lacks_gossip(fake_twins: pytest.MonkeyPatch) -> None:
    """Let the twin `left` describe itself without the mode of `gossip`."""
    modes: dict[str, Any] = fake.describe("left", {})["modes"]
    describe_as(fake_twins, "left", modes={name: answer for name, answer in modes.items() if name != "gossip"})
