"""Connections of a Dask cluster that only processes of one run can open.

Dask unpickles what it receives, so whoever reaches a port of it runs code as its user. With `RunSecurity` and `SCHEME` each
connection begins with `challenge`, and nothing else is read from a process that fails it. After that, it is Dask's TCP.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from distributed.comm import registry
from distributed.comm.core import FatalCommClosedError
from distributed.comm.tcp import TCP, TCPBackend, TCPConnector, TCPListener
from distributed.security import Security

from common.machine import challenge

SCHEME = "convtwins"
"""Scheme of the cluster's addresses: `convtwins://host:port`."""
NO_HTTP_ROUTES = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
"""Dask's configuration for a cluster that answers no HTTP request. It opens a port for them, and has no setting against it."""
LOW_OVERHEAD = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "2s",
}
"""Dask's configuration for a process that uses no core while it waits. As it comes, Dask looks at itself 200 times a second.

That takes 4 to 8 % of a core, and a watchdog takes a process for one at work from 5 % on.
"""


class RunSecurity(Security):
    """The argument `security` of a scheduler, a worker, a nanny and a client of a run."""

    def __init__(self, secret: str | None = None, handshake_seconds: float = challenge.HANDSHAKE_SECONDS) -> None:
        """Take the secret of a run, or make one."""
        super().__init__(require_encryption=False)
        self.secret = secret or secrets.token_hex(16)
        self.handshake_seconds = handshake_seconds
        """Seconds that a listener gives a process that has connected to authenticate."""

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """Return the arguments of the connector."""
        return {"secret": self.secret}

    def get_listen_args(self, role: str) -> dict[str, Any]:
        """Return the arguments of the listener."""
        return {"secret": self.secret, "handshake_seconds": self.handshake_seconds}


async def _authenticate(stream: Any, secret: str, *, server_side: bool) -> None:
    """Do the handshake of `connection.Connection` on Tornado's stream."""
    if stream.socket is None:
        raise ConnectionResetError("the other process has gone")
    handshake = challenge.Challenge(secret, stream.socket, server_side=server_side)
    await stream.write(handshake.nonce)
    await stream.write(handshake.answer(await stream.read_bytes(challenge.BYTES)))
    handshake.verify(await stream.read_bytes(challenge.BYTES))


class _Connector(TCPConnector):
    prefix = f"{SCHEME}://"

    async def connect(self, address: str, deserialize: bool = True, *, secret: str, **arguments: Any) -> TCP:
        comm: TCP = await super().connect(address, deserialize, **arguments)
        assert comm.stream is not None
        try:
            await _authenticate(comm.stream, secret, server_side=False)
        except challenge.AuthenticationError as error:
            comm.abort()
            raise FatalCommClosedError(f"{error}: {self.prefix}{address}") from None
        except BaseException:
            comm.abort()
            raise
        return comm


class _Listener(TCPListener):
    prefix = f"{SCHEME}://"

    def __init__(self, *arguments: Any, secret: str, handshake_seconds: float, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._secret, self._handshake_seconds = secret, handshake_seconds

    async def _prepare_stream(self, stream: Any, address: str) -> Any:
        try:
            await asyncio.wait_for(_authenticate(stream, self._secret, server_side=True), self._handshake_seconds)
        except OSError:  # also its subclasses TimeoutError, StreamClosedError and AuthenticationError
            stream.close()
            return None
        return stream


class _Backend(TCPBackend):
    _connector_class = _Connector
    _listener_class = _Listener


# A process that unpickles a RunSecurity, such as a nanny's worker, imports this module and so knows the scheme.
registry.backends[SCHEME] = _Backend()
