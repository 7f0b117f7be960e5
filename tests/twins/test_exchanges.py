"""What the ranks of a machine do to each other, timed in processes."""

import importlib
import sys
from pathlib import Path

import pytest

from common import spec
from common.machine import flight
from common.processes.exchanges import SIZES, ExchangeTimings
from tests.namespaces import Link, joined_hosts
from tests.support import processes

LINK = Link(megabits=100, milliseconds=5)
SHELL = "ip netns exec {host}"


def timed(framework: str, folder: Path, *prefix: str, **fields: object) -> tuple[int, str, Path]:
    path, out = folder / "spec.json", folder / "exchanges.json"
    path.write_text(spec.build({"global_batch_size": 4, "cores": 2, "steps": 1, **fields}).to_json(), "utf-8")
    command = [*prefix, sys.executable, "-m", f"{framework}_impl", "exchanges", str(path), "--out", str(out)]
    done = processes.run(command, CONVTWINS_RSH=SHELL)
    return done.exit_code, done.stderr, out


@pytest.mark.slow
def test_larger_messages_take_longer_and_passes_are_timed_alone_and_together(framework: str, tmp_path: Path) -> None:
    code, said, out = timed(framework, tmp_path, mode="multi_process", replicas=2)
    assert code == 0, said
    found = ExchangeTimings.model_validate_json(out.read_bytes())
    assert found.replicas == 2 and found.versions and found.alone_seconds and found.together_seconds
    assert [each.num_bytes for each in found.all_reduce] == list(SIZES)
    assert 0 < found.all_reduce[0].seconds < found.all_reduce[-1].seconds
    # Twin: TensorFlow's stages hand tensors on in one graph.
    assert [each.num_bytes for each in found.send] == (list(SIZES) if framework == "pytorch" else [])
    if found.send:
        assert found.send[0].seconds < found.send[-1].seconds


@pytest.mark.slow
def test_a_server_is_timed_by_all_its_workers(framework: str, tmp_path: Path) -> None:
    code, said, out = timed(framework, tmp_path, mode="parameter_server", replicas=2)
    assert code == 0, said
    found = ExchangeTimings.model_validate_json(out.read_bytes())
    assert [each.num_bytes for each in found.server] == list(SIZES)
    assert 0 < found.server[0].seconds < found.server[-1].seconds


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["multi_process", "parameter_server"])
def test_the_rate_and_the_delay_of_a_slow_link_are_found(framework: str, tmp_path: Path, mode: str) -> None:
    with joined_hosts(2, LINK) as made:
        hosts = [host.address for host in made]
        before = SHELL.replace("{host}", hosts[0]).split()
        code, said, out = timed(framework, tmp_path, *before, mode=mode, replicas=2, hosts=hosts)
    assert code == 0, said
    found = ExchangeTimings.model_validate_json(out.read_bytes())
    largest = (found.all_reduce or found.server)[-1]
    # In a ring of two each sends all bytes once. Of a server, the distant worker pushes and pulls all of them over the wire.
    seconds = largest.num_bytes * 8 / (LINK.megabits * 1e6) * (1 if found.all_reduce else 2)
    assert 0.9 * seconds < largest.seconds < 1.5 * seconds, (largest.seconds, seconds)
    # Two messages one after the other around the ring. Four for a push and a pull with their answers.
    smallest = (found.all_reduce or found.server)[0]
    least = 2 * LINK.milliseconds / 1e3 * (1 if found.all_reduce else 2)
    assert least < smallest.seconds < 3 * least, (smallest.seconds, least)


def test_one_replica_sends_nothing(framework: str, tmp_path: Path) -> None:
    # It is refused before the framework is imported.
    code, said, _ = timed(framework, tmp_path, mode="serial", replicas=1)
    assert code == 2 and "exchanges times processes. Received: mode serial." in said


@pytest.mark.slow
def test_an_exchange_of_a_type_without_a_name_is_recorded_and_does_not_end_training(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collectives = importlib.import_module(f"{framework}_impl.collectives")
    library = importlib.import_module({"pytorch": "torch", "tensorflow": "tensorflow"}[framework])
    ring = bytearray(flight.BYTES)
    monkeypatch.setattr(flight, "_ring", ring)
    monkeypatch.setattr(collectives, "channel", lambda group: flight.Channel(flight.RankRange(0, 1, 2)))
    collectives.begin(None, "all_reduce", library.zeros([2], dtype=library.complex64))
    (record,) = flight.read(bytes(ring), bytes(ring), 0).records
    assert (record.dtype, record.shape, record.num_bytes) == ("", (2,), 16)
