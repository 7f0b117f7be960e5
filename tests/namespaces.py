"""Hosts of their own on this machine: network namespaces, joined by a switch."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

INTERFACE = "eth0"


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
def joined_hosts(number: int) -> Generator[list[Host]]:
    """So many hosts that reach each other and nothing else; the test is skipped where namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    network = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"  # of this test alone: the names are the machine's
    hosts, switch = [Host(f"{network}.{place + 1}") for place in range(number)], f"{network}.switch"
    with ExitStack() as undo:
        for name in (switch, *(host.address for host in hosts)):
            made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
            undo.callback(subprocess.run, ["ip", "netns", "delete", name], check=True)
        _ip(switch, "link", "add", "name", "bridge", "type", "bridge")
        _ip(switch, "link", "set", "bridge", "up")
        for place, host in enumerate(hosts):
            plug = f"plug{place}"
            _ip(host.address, "link", "add", "name", INTERFACE, "type", "veth", "peer", "name", plug, "netns", switch)
            _ip(switch, "link", "set", plug, "master", "bridge")
            _ip(switch, "link", "set", plug, "up")
            _ip(host.address, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip(host.address, "link", "set", interface, "up")
        yield hosts


def _ip(namespace: str, *words: str) -> None:
    subprocess.run(["ip", "-netns", namespace, *words], check=True)
