"""Moves the pages of the selftests' processes between NUMA nodes 0 and 1, for ever."""

import ctypes
import os
import time

MIGRATE_PAGES = 256  # x86_64
libc = ctypes.CDLL(None, use_errno=True)


def tests():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as comm:
                if comm.read().startswith("hmm_p2p_"):
                    yield int(pid)
        except OSError:
            pass  # It has ended.


def move(pid, old, new):
    def mask(node):
        return ctypes.byref(ctypes.c_ulong(1 << node))

    # The kernel looks at one bit less.
    libc.syscall(MIGRATE_PAGES, pid, 65, mask(old), mask(new))


node = 0
while True:
    for pid in tests():
        move(pid, node, 1 - node)
    node = 1 - node
    time.sleep(0.2)
