"""A wire with a delay between network namespaces: `python -m tests.relay MILLISECONDS MEGABITS ADDRESS ADDRESS ...`

The kernel may lack `netem`. So each namespace gets a TUN device, and this process hands packets from one to the other, each
as late as asked for. The rate of each direction is limited by `tc` with its `tbf`, which every kernel has. Packets may be
larger than the MTU (TSO): few of them cross Python, and TCP's own segments stay those of the MTU.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

from tests.namespaces import INTERFACE

_SET_INTERFACE, _SET_OFFLOAD = 0x400454CA, 0x400454D0  # TUNSETIFF, TUNSETOFFLOAD of linux/if_tun.h
_FLAGS = 0x0001 | 0x1000 | 0x4000  # IFF_TUN, IFF_NO_PI, IFF_VNET_HDR
_OFFLOADS = 0x01 | 0x02  # TUN_F_CSUM, TUN_F_TSO4
_HEADER = 10  # bytes of struct virtio_net_hdr, in front of each packet
_DESTINATION = slice(_HEADER + 16, _HEADER + 20)  # of an IPv4 packet
_LARGEST = _HEADER + 2**16


def main() -> None:
    """Relay until SIGTERM. Says `ready` once all devices are up."""
    delay, megabits, addresses = float(sys.argv[1]) / 1e3, float(sys.argv[2]), sys.argv[3:]
    wires = {bytes(map(int, address.split("."))): _wire(address, megabits) for address in addresses}
    print("ready", flush=True)
    waiting: deque[tuple[float, int, bytes]] = deque()  # (when it arrives, where, packet); all wait equally long
    while True:
        late = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        for wire in select.select(list(wires.values()), [], [], late)[0]:
            packet = os.read(wire, _LARGEST)
            if (other := wires.get(packet[_DESTINATION])) is not None:
                waiting.append((time.monotonic() + delay, other, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, other, packet = waiting.popleft()
            with contextlib.suppress(OSError):  # a queue that is full drops a packet, as a wire does
                os.write(other, packet)


def _wire(address: str, megabits: float) -> int:
    """The end of a TUN device in the namespace that has the name of its address."""
    name = f"relay{address.rpartition('.')[2]}-{os.getpid() % 10000}"
    wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(wire, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _FLAGS))
    fcntl.ioctl(wire, _SET_OFFLOAD, _OFFLOADS)
    inside = ["ip", "-netns", address]
    for words in (
        ["ip", "link", "set", name, "netns", address],
        [*inside, "link", "set", name, "name", INTERFACE],
        [*inside, "address", "add", f"{address}/24", "dev", INTERFACE],
        [*inside, "link", "set", INTERFACE, "up"],
        f"tc -netns {address} qdisc add dev {INTERFACE} root tbf rate {megabits}mbit burst 64kb latency 400ms".split(),
    ):
        subprocess.run(words, check=True)
    return wire


if __name__ == "__main__":
    main()
