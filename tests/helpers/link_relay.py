"""A cable of a certain length: hands frames from one TAP device to another and back, each after a delay.

    python link_relay.py NEAR FAR SECONDS

The devices exist and carry virtio headers, so that segments of up to 64 KB that the kernel has not cut yet pass whole:
that is what lets a Python process keep up with a fast link.
"""

import fcntl
import os
import select
import struct
import sys
from collections import deque
from time import monotonic

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
CHECKSUMS, SEGMENTS_4, SEGMENTS_6 = 0x01, 0x02, 0x04
LARGEST = 65_536 + 128
# So many frames are read before those that are due are handed on.
AT_ONCE = 32


def main() -> None:
    """Relay until killed."""
    near, far, seconds = open_device(sys.argv[1]), open_device(sys.argv[2]), float(sys.argv[3])
    print("ready", flush=True)
    relay(near, far, seconds)


def open_device(name: str) -> int:
    """Return a handle of a TAP device, through which frames are read and written."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(handle, TUNSETOFFLOAD, CHECKSUMS | SEGMENTS_4 | SEGMENTS_6)
    return handle


def relay(near: int, far: int, seconds: float) -> None:
    """Hand frames on in both directions; those of one direction stay in order."""
    held: dict[int, deque[tuple[float, bytes]]] = {near: deque(), far: deque()}
    other = {near: far, far: near}
    poll = select.epoll()
    for handle in held:
        poll.register(handle, select.EPOLLIN)
    while True:
        due = [frames[0][0] for frames in held.values() if frames]
        # Waits in whole milliseconds would hold a frame for up to one longer: epoll takes fractions, and rounds up.
        timeout = max(0.0, min(due) - monotonic()) if due else -1
        for handle, _ in poll.poll(timeout):
            read(handle, held[handle], seconds)
        now = monotonic()
        for handle, frames in held.items():
            while frames and frames[0][0] <= now:
                write(other[handle], frames.popleft()[1])


def read(handle: int, frames: deque[tuple[float, bytes]], seconds: float) -> None:
    """Take what has come to a device."""
    for _ in range(AT_ONCE):
        try:
            frame = os.read(handle, LARGEST)
        except BlockingIOError:
            return
        frames.append((monotonic() + seconds, frame))


def write(handle: int, frame: bytes) -> None:
    """Hand a frame on; one that the other side cannot take is lost, as on a real cable."""
    try:
        os.write(handle, frame)
    except OSError:
        return


if __name__ == "__main__":
    main()
