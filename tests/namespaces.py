"""Hosts of their own on this machine: network namespaces, joined by a switch or by a slow wire."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from common.machine import machine

INTERFACE = "eth0"


class Link(NamedTuple):
    """What a message between two hosts meets."""

    megabits: float
    """A second, of what each host sends."""
    milliseconds: float
    """Until a packet arrives."""


@dataclass(frozen=True)
class Host:
    """A network namespace with one interface besides loopback, named by its address."""

    address: str

    def command(self, *words: str) -> list[str]:
        """The words that run a command on this host."""
        return ["ip", "netns", "exec", self.address, *words]

    def plug(self, plugged: bool = True) -> None:
        """Join its cable and the switch, or pull the cable. Nobody is told: what is sent is lost."""
        network, _, place = self.address.rpartition(".")
        _ip(f"{network}.switch", "link", "set", f"plug{int(place) - 1}", *(("master", "bridge") if plugged else ("nomaster",)))

    def sent_bytes(self) -> int:
        """What has left its interface so far, headers included."""
        counter = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        return int(subprocess.run(self.command("cat", counter), check=True, capture_output=True).stdout)


@contextmanager
def joined_hosts(number: int, link: Link | None = None) -> Generator[list[Host]]:
    """So many hosts that reach each other and nothing else; the test is skipped where namespaces cannot be made.

    Args:
        link: None: as fast as the machine makes it. Only such hosts have a cable that `plug` can pull.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    network = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"  # of this test alone: the names are the machine's
    hosts, switch = [Host(f"{network}.{place + 1}") for place in range(number)], f"{network}.switch"
    with ExitStack() as undo:
        for name in [*([switch] if link is None else []), *(host.address for host in hosts)]:
            made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
            undo.callback(subprocess.run, ["ip", "netns", "delete", name], check=True)
            _ip(name, "link", "set", "lo", "up")
        if link is None:
            _join_by_switch(switch, hosts)
        else:
            undo.enter_context(_relayed(hosts, link))
        yield hosts


def _join_by_switch(switch: str, hosts: Sequence[Host]) -> None:
    _ip(switch, "link", "add", "name", "bridge", "type", "bridge")
    _ip(switch, "link", "set", "bridge", "up")
    for place, host in enumerate(hosts):
        plug = f"plug{place}"
        _ip(host.address, "link", "add", "name", INTERFACE, "type", "veth", "peer", "name", plug, "netns", switch)
        _ip(switch, "link", "set", plug, "master", "bridge")
        _ip(switch, "link", "set", plug, "up")
        _ip(host.address, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        _ip(host.address, "link", "set", INTERFACE, "up")


@contextmanager
def _relayed(hosts: Sequence[Host], link: Link) -> Generator[None]:
    if not Path("/dev/net/tun").exists():
        pytest.skip("a slow wire needs /dev/net/tun")
    words = [str(link.milliseconds), str(link.megabits), *(host.address for host in hosts)]
    command = [sys.executable, "-m", "tests.relay", *words]
    # Ctrl-C must not end it before those that send over it.
    with subprocess.Popen(
        command, cwd=machine.PROJECT_ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as relay:
        try:
            assert relay.stdout is not None and relay.stdout.readline() == "ready\n", "the relay did not start"
            yield
        finally:
            relay.terminate()


def _ip(namespace: str, *words: str) -> None:
    subprocess.run(["ip", "-netns", namespace, *words], check=True)
