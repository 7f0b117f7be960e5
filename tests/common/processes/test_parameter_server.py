"""The server by itself, in a process of its run's own, and on a cluster that somebody else has."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from typing import Any

import distributed
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import spec
from common.machine import machine, placement
from common.processes import parameter_server, supervisor
from common.processes.parameter_server import Server, ServerConnection, ServerError
from common.processes.process_spec import ProcessSpec
from common.processes.supervisor import Failure, Watch
from common.spec import Spec
from common.training import optim
from tests.support.comparisons import with_fields

SGD = spec.Optimizer.model_validate({"momentum": 0.0})
SECRET = "of the run"
AS_THEY_ARE = spec.Communication()  # pyright: ignore[reportCallIssue]


def settings(**fields: Any) -> Spec:
    return spec.build({"mode": "parameter_server", "replicas": 2, "cores": 1, "optimizer": SGD, "parameter_server": fields})


def run(server: Server, values: np.ndarray, *works: Callable[[int], Any]) -> list[Any]:
    """What workers say that all start from the same values, each a coroutine function of its rank."""

    async def one(rank: int, work: Callable[[int], Any]) -> Any:
        await server.load(rank, values, [len(values)])
        return await work(rank)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(one(rank, work) for rank, work in enumerate(works)))

    return asyncio.run(all_of_them())


def test_a_synchronous_update_is_one_from_the_sum_of_all_shares_in_the_order_of_ranks() -> None:
    # (1e16 + 1) - 1e16 is 0 in float64, and 1 in another order.
    gradients = {0: 1e16, 1: 1.0, 2: -1e16}
    server = Server(SGD, AS_THEY_ARE, 3, synchronous=True, staleness=None)

    async def work(rank: int) -> Any:
        for _ in range(2 - rank):  # the last rank comes first
            await asyncio.sleep(0)
        await server.push(rank, [np.array([gradients[rank]])], 0.5)
        return await server.pull(rank)

    pulled = run(server, np.array([2.0]), work, work, work)
    assert [float(values[0]) for values in pulled] == [2.0] * 3
    assert asyncio.run(server.late(0)) == [3]


def test_messages_that_leave_parameters_out_are_refused() -> None:
    server = Server(SGD, AS_THEY_ARE, 1, synchronous=True, staleness=None)
    with pytest.raises(ServerError, check=lambda error: {"3", "4"} <= set(str(error).split())):
        asyncio.run(server.load(0, np.zeros(4), [3]))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_pieces_of_messages_are_updated_as_the_whole_is(name: str) -> None:
    counts, steps, workers = [5, 3], 3, 3
    optimizer = spec.Optimizer.model_validate({"name": name, "weight_decay": 0.1})
    generator = np.random.default_rng(0)
    start, shares = generator.normal(size=8), generator.normal(size=(steps, workers, 8))
    expected = start.copy()
    rule = optim.build(optimizer, [expected])
    for step in range(steps):
        rule.apply([reduce(np.add, shares[step])], 0.5, step + 1)
    server = Server(optimizer, AS_THEY_ARE, workers, synchronous=True, staleness=None, chunk_size=2)

    async def work(rank: int) -> Any:
        await server.load(rank, start, counts)
        for step in range(steps):
            await server.push(rank, np.split(shares[step, rank], [5]), 0.5)
            pulled = await server.pull(rank)
        return pulled, await server.slots(rank)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(work(rank) for rank in range(workers)))

    for pulled, slots in asyncio.run(all_of_them()):
        np.testing.assert_array_equal(pulled, expected)
        for slot, (kept,) in rule.slots().items():
            np.testing.assert_array_equal(slots[slot], kept)
    backwards = {slot: values[::-1] for slot, values in slots.items()}

    async def set_and_ask(rank: int) -> Any:
        await server.load_slots(rank, backwards)
        return await server.slots(rank)

    async def set_and_ask_all() -> list[Any]:
        return await asyncio.gather(*(set_and_ask(rank) for rank in range(workers)))

    for found in asyncio.run(set_and_ask_all()):
        for slot, values in backwards.items():
            np.testing.assert_array_equal(found[slot], values)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_what_the_rule_keeps_can_be_read_and_is_set_by_the_first_rank(name: str) -> None:
    """For recordings of single steps."""
    server = Server(spec.Optimizer.model_validate({"name": name}), AS_THEY_ARE, 2, synchronous=True, staleness=None)

    async def work(rank: int) -> Any:
        await server.push(rank, [np.array([1.0 + rank, 4.0])], 0.5)
        kept = await server.slots(rank)
        await server.load_slots(rank, {slot: 2 * values for slot, values in kept.items()} if rank == 0 else {})
        return kept, await server.slots(rank)

    (kept, doubled), (_, same) = run(server, np.zeros(2), work, work)
    if name == "sgd":
        np.testing.assert_array_equal(kept["buffer"], [3.0, 8.0])
    else:
        np.testing.assert_allclose(kept["mean"], [0.3, 0.8])
        np.testing.assert_allclose(kept["square"], [0.009, 0.064])
    for slot, values in kept.items():
        np.testing.assert_array_equal(doubled[slot], 2 * values)
        np.testing.assert_array_equal(same[slot], 2 * values)


def test_compressed_shares_are_added_up_in_full() -> None:
    chosen = with_fields(AS_THEY_ARE, compression="float16")
    server = Server(SGD, chosen, 2, synchronous=True, staleness=None)

    async def work(rank: int) -> Any:
        messages = [np.array([2048.0, 0.1], np.float16), np.array([1.0 + rank], np.float16)]
        await server.load(rank, np.zeros(3, np.float32), [2, 1])
        await server.push(rank, messages, 1.0)
        return await server.pull(rank)

    pulled = run(server, np.zeros(3, np.float32), work, work)
    assert pulled[0].dtype == np.float32
    np.testing.assert_array_equal(pulled[0], [-4096.0, np.float32(-2) * np.float16(0.1), -3.0])


def test_an_asynchronous_push_is_applied_at_once() -> None:
    server = Server(SGD, AS_THEY_ARE, 2, synchronous=False, staleness=None)

    async def first(rank: int) -> Any:
        await server.push(rank, [np.array([1.0])], 0.5)
        return await server.pull(rank)

    async def second(rank: int) -> Any:
        while (await server.pull(rank))[0] == 2.0:
            await asyncio.sleep(0)
        await server.push(rank, [np.array([1.0])], 0.25)
        return await server.pull(rank)

    assert [float(values[0]) for values in run(server, np.array([2.0]), first, second)] == [1.5, 1.25]
    assert asyncio.run(server.late(0)) == [2]


@given(st.data(), st.integers(0, 3), st.integers(2, 4))
def test_no_worker_is_further_ahead_than_the_bound_and_every_push_is_counted(
    data: st.DataObject, bound: int, workers: int
) -> None:
    steps = 6
    server = Server(SGD, AS_THEY_ARE, workers, synchronous=False, staleness=bound)
    waits = data.draw(st.lists(st.integers(0, 12), min_size=workers * steps, max_size=workers * steps))
    done = [0] * workers
    furthest = 0

    async def work(rank: int) -> None:
        nonlocal furthest
        for step in range(steps):
            await server.pull(rank)
            furthest = max(furthest, done[rank] - min(done))
            for _ in range(waits[rank * steps + step]):
                await asyncio.sleep(0)
            await server.push(rank, [np.array([1.0])], 1.0)
            done[rank] += 1

    run(server, np.array([0.0]), *[work] * workers)
    assert furthest <= bound
    late = asyncio.run(server.late(0))
    assert sum(late) == workers * steps
    assert len(late) - 1 <= (workers - 1) * (
        2 * bound + 1
    )  # each other is at most so many steps behind at first, ahead at last


def test_without_a_bound_a_worker_runs_as_far_ahead_as_it_likes() -> None:
    server = Server(SGD, AS_THEY_ARE, 2, synchronous=False, staleness=None)
    ended = asyncio.Event()

    async def fast(rank: int) -> None:
        for _ in range(5):
            await server.pull(rank)
            await server.push(rank, [np.array([1.0])], 1.0)
        ended.set()

    async def slow(rank: int) -> None:
        await server.pull(rank)
        await ended.wait()
        await server.push(rank, [np.array([1.0])], 1.0)

    run(server, np.array([0.0]), fast, slow)
    assert asyncio.run(server.late(0)) == [5, 0, 0, 0, 0, 1]


def test_a_rank_that_is_here_already_is_refused() -> None:
    async def join_twice() -> None:
        server = Server(SGD, AS_THEY_ARE, 2, synchronous=True, staleness=None)
        first = asyncio.create_task(server.join(1, "client"))
        await asyncio.sleep(0)
        try:
            with pytest.raises(ServerError, check=lambda error: "rank 1" in str(error)):
                await server.join(1, "another client")
        finally:
            first.cancel()

    asyncio.run(join_twice())


RANK = """
import os, signal
import numpy as np, psutil
from common.machine import machine; from common.processes import parameter_server
from tests.common.processes.test_parameter_server import settings
rank = int(os.environ["RANK"])
server = parameter_server.join(settings(), rank, "here")
server.load(np.full(3, 2.0, np.float32), [3])
"""


def run_ranks(code: str, monkeypatch: pytest.MonkeyPatch) -> Failure | None:
    monkeypatch.setenv("PYTHONPATH", str(machine.PROJECT_ROOT))
    own = parameter_server.server_process(settings(), SECRET)
    assert own is not None
    server, address = own
    command = [sys.executable, "-c", RANK + textwrap.dedent(code)]
    known = {placement.RUN_SECRET_VARIABLE: SECRET, **address}
    ranks = [ProcessSpec(f"rank {rank}", command, {"RANK": str(rank), **known}) for rank in range(2)]
    return supervisor.run_members([*ranks, server], Watch())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of two ranks tells of its server, which has nothing to do in the end."""
    told = tmp_path_factory.mktemp("served") / "told.json"
    code = f"""
        import json, time
        from common.machine import footprint
        for step in range(3):
            server.push([np.full(3, 1.0 + rank, np.float32)], 0.1)
            values = server.pull()
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, 2.0 - 3 * 0.3, rtol=1e-6)
        assert server.sum(np.array([rank, 1])).tolist() == [1, 2]
        report = server.report()
        assert report["bytes_per_step"] == 2 * 2 * values.nbytes
        assert report["staleness"].counts == [6] and report["staleness"].waiting_seconds > 0
        if rank == 0:
            companion = psutil.Process(int(os.environ[machine.COMPANION_VARIABLE]))
            assert companion in machine.process_tree()
            listening = [each.laddr.ip for each in companion.net_connections() if each.status == psutil.CONN_LISTEN]
            def woken():
                return footprint.read(companion.pid).total("voluntary_switches")
            before, since = woken(), time.monotonic()
            time.sleep(4)
            wakes = (woken() - before) / (time.monotonic() - since)
            with open({str(told)!r}, "w") as file:
                json.dump({{"pid": companion.pid, "listening": listening, "wakes": wakes}}, file)
        server.close()
    """
    with pytest.MonkeyPatch.context() as patch:
        assert run_ranks(code, patch) is None
    return json.loads(told.read_text())


def test_a_run_has_a_server_process_of_its_own_on_the_loopback_interface(served: dict[str, Any]) -> None:
    assert served["listening"] and set(served["listening"]) == {"127.0.0.1"}
    assert not psutil.pid_exists(served["pid"])


def test_a_server_that_nobody_asks_sleeps(served: dict[str, Any]) -> None:
    """It looked at itself 200 times a second once, for 4 to 6 % of a core. So a run that hung was taken for one at work, for
    minutes. Wakes are counted: what one costs depends on the machine.
    """
    assert served["wakes"] < 30


@pytest.mark.parametrize(
    ("victim", "index", "name"),
    [
        ("int(os.environ[machine.COMPANION_VARIABLE])", 2, "parameter server"),
        pytest.param("os.getpid()", 0, "rank 0 of 2", marks=pytest.mark.slow),
    ],
    ids=["server", "worker"],
)
def test_a_killed_server_and_a_killed_worker_end_the_run_with_their_names(
    monkeypatch: pytest.MonkeyPatch, victim: str, index: int, name: str
) -> None:
    code = f"""
        server.pull()
        if rank == 0:
            os.kill({victim}, signal.SIGKILL)
        server.push([np.ones(3, np.float32)], 0.1)
        server.pull()
    """
    failure = run_ranks(code, monkeypatch)
    assert failure is not None and failure[:2] == (index, -9) and failure.message.startswith(f"{name} ")


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    """Two workers of one thread each, in processes of their own."""
    arguments = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(**arguments) as cluster:
        yield cluster


def work_together(
    cluster: distributed.LocalCluster, meeting_place: str, work: Callable[[ServerConnection, int], Any], **limits: float
) -> list[Any]:
    """What two workers say that share a server on a cluster."""
    read = settings(scheduler=cluster.scheduler_address)

    def one(rank: int) -> Any:
        server = parameter_server.join(read, rank, meeting_place, **limits)
        try:
            server.load(np.array([2.0]), [1])
            return work(server, rank)
        finally:
            server._client.close()  # pyright: ignore[reportPrivateUsage]

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(one, range(2)))


def test_the_cluster_of_a_user_holds_the_parameters(cluster: distributed.LocalCluster) -> None:
    def work(server: ServerConnection, rank: int) -> float:
        server.push([np.array([1.0 + rank])], 0.1)
        values = server.pull()
        server.barrier()
        return float(values[0])

    assert parameter_server.server_process(settings(scheduler=cluster.scheduler_address), SECRET) is None
    for meeting_place in ("here", "there", "here"):
        assert work_together(cluster, meeting_place, work) == pytest.approx([1.7, 1.7])


def test_only_the_pushes_and_pulls_of_steps_count_as_waiting(cluster: distributed.LocalCluster) -> None:
    def work(server: ServerConnection, rank: int) -> list[float]:
        waited = [0.0]
        for meet in (lambda: server.push([np.array([1.0])], 0.1), server.pull, server.pull, server.barrier):
            if rank == 0:
                time.sleep(0.2)  # the other one waits in whatever they meet in
            meet()
            waited.append(server.report()["staleness"].waiting_seconds)
        return waited

    waited, _ = work_together(cluster, "for the time", work)
    pushed, pulled, pulled_again, met = (after > before for before, after in pairwise(waited))
    assert (pushed, pulled, pulled_again, met) == (True, True, False, False)


def test_nobody_waits_for_a_worker_that_has_gone(cluster: distributed.LocalCluster) -> None:
    def work(server: ServerConnection, rank: int) -> None:
        if rank == 0:
            with pytest.raises(ServerError, check=lambda error: "rank 1" in str(error)):
                server.barrier()

    work_together(cluster, "with a deserter", work, answer_seconds=0.3)


def test_a_dask_worker_that_dies_with_the_parameters_is_no_silence(cluster: distributed.LocalCluster) -> None:
    def meet_for_ever(server: ServerConnection) -> None:
        while True:
            server.barrier()

    def work(server: ServerConnection, rank: int) -> None:
        server.barrier()
        if rank == 0:
            address: str = server._server._address  # pyright: ignore[reportPrivateUsage]
            (pid,) = server._client.run(os.getpid, workers=[address]).values()  # pyright: ignore[reportPrivateUsage]
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServerError, check=lambda error: str(error).startswith("the parameter server is gone ")):
            meet_for_ever(server)

    work_together(cluster, "on a mortal", work)


def test_a_server_that_does_not_answer_is_refused() -> None:
    with socket.socket() as silent:  # it takes the connection and says nothing
        silent.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerError, check=lambda error: f"Received: {address}" in str(error)):
            parameter_server.join(settings(scheduler=address), 0, "nowhere", connect_seconds=1.0)


def test_ranks_that_somebody_else_started_are_told_to_bring_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(parameter_server.ADDRESS_VARIABLE, raising=False)
    with pytest.raises(ServerError, check=lambda error: "parameter_server.scheduler" in str(error)):
        parameter_server.join(settings(), 0, "nowhere")


def test_only_a_run_with_a_server_starts_one() -> None:
    assert parameter_server.server_process(spec.build({"mode": "multi_process", "replicas": 2}), SECRET) is None


def test_an_address_with_colons_stands_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "free_ports", lambda *_: [2000])  # no machine of a test has this address
    own = parameter_server.server_process(settings().with_fields(hosts=("fd00::1", "fd00::2")), SECRET)
    assert own is not None
    assert own[1] == {parameter_server.ADDRESS_VARIABLE: "convtwins://[fd00::1]:2000"}
