"""User-space switch that adds delay, which the kernel's token buckets cannot; it is a separate process.

    python -m autosbp.testing.emulated._switch RATE_MBIT DELAY_MS NAMESPACE...

It creates a TAP device in each namespace, writes ``ready`` to standard output and forwards frames until standard input
ends, so it ends with its owner. Devices pass TCP segments unsplit (up to 64 KB with a ``virtio_net_hdr`` before each
frame), which keeps Python fast enough for hundreds of Mbit/s; links are charged as if the segments were split.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import struct
import sys
import time
from contextlib import suppress

from autosbp.testing.emulated._links import Links
from autosbp.testing.emulated._network import INTERFACE
from autosbp.testing.emulated._owners import NAMESPACES

# linux/if_tun.h, linux/sched.h
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_CLONE_NEWNET = 0x40000000

_HEADER = struct.Struct("<BBHHHH")  # virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
_MAX_FRAME_BYTES = 70_000
_FRAMES_A_TURN = 64


def open_tap(namespace: str) -> int:
    """Create a TAP device ``INTERFACE`` in the namespace; its file descriptor is valid in the caller's namespace."""
    with (NAMESPACES / namespace).open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", INTERFACE.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
    fcntl.ioctl(tap, _TUNSETIFF, request)
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return tap


def wire_bytes(frame: bytes) -> int:
    """Bytes that a frame read from a TAP device occupies on a link, counting headers for each of its segments."""
    gso_type: int
    header_bytes: int
    segment_bytes: int
    _, gso_type, header_bytes, segment_bytes, _, _ = _HEADER.unpack_from(frame)
    size = len(frame) - _HEADER.size
    if gso_type == 0 or segment_bytes == 0:
        return size
    num_segments = -(-(size - header_bytes) // segment_bytes)
    return size + (num_segments - 1) * header_bytes


class Switch:
    """Forwards frames between TAP devices, learning each address's port from the frames it sends."""

    def __init__(self, taps: list[int], links: Links) -> None:
        self.taps, self.links = taps, links
        self.ports: dict[bytes, int] = {}

    def take(self, port: int) -> None:
        """Read the frames that wait at a port, at most ``_FRAMES_A_TURN``."""
        for _ in range(_FRAMES_A_TURN):
            try:
                frame = os.read(self.taps[port], _MAX_FRAME_BYTES)
            except BlockingIOError:
                return
            target, source = frame[_HEADER.size : _HEADER.size + 6], frame[_HEADER.size + 6 : _HEADER.size + 12]
            self.ports[source] = port
            known = self.ports.get(target)
            targets = [known] if known is not None else [other for other in range(len(self.taps)) if other != port]
            now_s, size = time.monotonic(), wire_bytes(frame)
            for other in targets:
                self.links.send(now_s, port, other, frame, size)

    def deliver_frames(self) -> None:
        """Deliver frames that have arrived; a device that is down loses them, as a cable would."""
        for port, frame in self.links.pop_arrived(time.monotonic()):
            with suppress(OSError):
                os.write(self.taps[port], frame)

    def run(self) -> None:
        """Forward until standard input ends."""
        with selectors.SelectSelector() as selector:  # the only selector with a timeout below a millisecond
            selector.register(sys.stdin, selectors.EVENT_READ, None)
            for port, tap in enumerate(self.taps):
                selector.register(tap, selectors.EVENT_READ, port)
            while True:
                for key, _ in selector.select(self.links.wait_s(time.monotonic())):
                    if key.data is None:
                        return
                    self.take(key.data)
                self.deliver_frames()


def main(rate_mbit: str, delay_ms: str, *namespaces: str) -> None:
    taps = [open_tap(namespace) for namespace in namespaces]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    Switch(taps, Links(len(taps), float(rate_mbit) * 1e6 / 8, float(delay_ms) * 1e-3)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
