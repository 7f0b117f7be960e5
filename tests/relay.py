"""A slow wire between network namespaces: `python -m tests.relay MILLISECONDS MEGABITS ADDRESS ADDRESS ...`

The kernel may lack `netem`, and `tbf` lets a burst through at no cost. So each namespace gets a TUN device, and this process
hands packets from one to the other, each as late as the wire would. Packets may be larger than the MTU (TSO): few of them
cross Python, and TCP's own segments stay those of the MTU.
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
from typing import NamedTuple

from common.machine import parent_process
from tests.namespaces import INTERFACE

_SET_INTERFACE, _SET_OFFLOAD = 0x400454CA, 0x400454D0  # TUNSETIFF, TUNSETOFFLOAD of linux/if_tun.h
_FLAGS = 0x0001 | 0x1000 | 0x4000  # IFF_TUN, IFF_NO_PI, IFF_VNET_HDR
_OFFLOADS = 0x01 | 0x02  # TUN_F_CSUM, TUN_F_TSO4
_HEADER = 10  # bytes of struct virtio_net_hdr, in front of each packet
_DESTINATION = slice(_HEADER + 16, _HEADER + 20)  # of an IPv4 packet
_LARGEST = _HEADER + 2**16
_LONGEST_QUEUE = 0.4  # seconds that a packet waits for those before it; then it is dropped


class _Packet(NamedTuple):
    arrives: float
    to: int
    content: bytes


def main() -> None:
    """Relay until it is ended. Says `ready` once all devices are up."""
    parent_process.die_with_parent()
    delay, seconds_per_byte, addresses = float(sys.argv[1]) / 1e3, 8e-6 / float(sys.argv[2]), sys.argv[3:]
    wires = {bytes(map(int, address.split("."))): _wire(address) for address in addresses}
    print("ready", flush=True)
    free = dict.fromkeys(wires.values(), 0.0)  # when a wire has sent what it was given
    waiting: dict[int, deque[_Packet]] = {wire: deque() for wire in wires.values()}  # by the wire that sends
    while True:
        due = min((queue[0].arrives for queue in waiting.values() if queue), default=None)
        late = None if due is None else max(due - time.monotonic(), 0.0)
        for wire in select.select([*waiting], [], [], late)[0]:
            content, now = os.read(wire, _LARGEST), time.monotonic()
            other = wires.get(content[_DESTINATION])
            if other is None or free[wire] - now > _LONGEST_QUEUE:
                continue
            free[wire] = max(free[wire], now) + seconds_per_byte * (len(content) - _HEADER)
            waiting[wire].append(_Packet(free[wire] + delay, other, content))
        for queue in waiting.values():
            while queue and queue[0].arrives <= time.monotonic():
                packet = queue.popleft()
                with contextlib.suppress(OSError):  # a full queue drops a packet, as a wire does
                    os.write(packet.to, packet.content)


def _wire(address: str) -> int:
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
    ):
        subprocess.run(words, check=True)
    return wire


if __name__ == "__main__":
    main()
