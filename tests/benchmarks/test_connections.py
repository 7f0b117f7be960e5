"""What the proof of docs/threat-model.md costs: connections of Dask with it and without, and a step's exchange over each."""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from distributed.comm.core import connect, listen
from distributed.protocol.serialize import Serialize
from pytest_benchmark.fixture import BenchmarkFixture

from common.machine import placement
from common.machine.dask_security import RunSecurity

SECURITY = RunSecurity("of the run")
GRADIENTS = np.ones(3_000_000 // 4, np.float32)
"""3 MB."""


class Served(NamedTuple):
    loop: asyncio.AbstractEventLoop
    address: str
    arguments: dict[str, Any]


async def _echo(comm: Any) -> None:
    while not comm.closed():
        try:
            await comm.write(await comm.read())
        except OSError:
            return


@pytest.fixture(params=["tcp", "convtwins"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server that sends back what it gets. Dask's own connections are `tcp`, those with a proof `convtwins`."""
    proven = request.param != "tcp"
    with asyncio.Runner() as runner:

        async def listening() -> Any:
            arguments = SECURITY.get_listen_args("scheduler") if proven else {}
            listener: Any = listen(f"{request.param}://{placement.LOOPBACK}:0", _echo, **arguments)
            await listener.start()
            return listener

        listener = runner.run(listening())
        yield Served(runner.get_loop(), listener.contact_address, SECURITY.get_connection_args("worker") if proven else {})
        listener.stop()


def test_seconds_of_a_connection(benchmark: BenchmarkFixture, served: Served) -> None:
    async def connected() -> None:
        comm = await connect(served.address, **served.arguments)
        await comm.close()

    benchmark(lambda: served.loop.run_until_complete(connected()))


def test_seconds_of_an_exchange(benchmark: BenchmarkFixture, served: Served) -> None:
    comm = served.loop.run_until_complete(connect(served.address, **served.arguments))

    async def exchanged() -> Any:
        await comm.write({"gradients": Serialize(GRADIENTS)})
        return await comm.read()

    answer = benchmark(lambda: served.loop.run_until_complete(exchanged()))
    assert answer["gradients"].data.nbytes == GRADIENTS.nbytes
    served.loop.run_until_complete(comm.close())
