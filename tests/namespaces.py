"""Two hosts of their own on this machine: network namespaces, joined by a cable."""

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

    def sent_bytes(self) -> int:
        """What has left its interface so far, headers included."""
        counter = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        return int(subprocess.run(self.command("cat", counter), check=True, capture_output=True).stdout)


@contextmanager
def two_hosts() -> Generator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else; the test is skipped where namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    network = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"  # of this test alone: the names are the machine's
    first, second = Host(f"{network}.1"), Host(f"{network}.2")
    with ExitStack() as undo:
        for host in (first, second):
            made = subprocess.run(["ip", "netns", "add", host.address], check=False, capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
            undo.callback(subprocess.run, ["ip", "netns", "delete", host.address], check=True)
        ends = ("netns", first.address, "type", "veth", "peer", "name", INTERFACE, "netns", second.address)
        subprocess.run(["ip", "link", "add", "name", INTERFACE, *ends], check=True)
        for host in (first, second):
            ip = ["ip", "-netns", host.address]
            subprocess.run([*ip, "address", "add", f"{host.address}/24", "dev", INTERFACE], check=True)
            for interface in ("lo", INTERFACE):
                subprocess.run([*ip, "link", "set", interface, "up"], check=True)
        yield first, second
