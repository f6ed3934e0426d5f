"""The rate of this machine's time stamp counter, which an emulated guest reads as its own.

The guest's kernel would measure it against an emulated timer. On a busy host it found 221 and
471 MHz for 2596 in two of twelve boots: its clock then runs up to twelve times too fast, and each
deadline in the guest passes early.
"""

import ctypes
import mmap
import platform
import time

# rdtsc; shl rdx, 32; or rax, rdx; ret
READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")


def boot_argument():
    """What tells the guest's kernel the rate, or "" where it cannot be measured."""
    if platform.machine() != "x86_64":
        return ""
    try:
        return f"tsc_early_khz={tsc_khz()}"
    except OSError:  # memory that is written and executed is forbidden
        return ""


def tsc_khz(seconds=0.1):
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(READ_COUNTER)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))

    def now():
        """The time and the counter at one moment: the closest pair of many."""
        pairs = []
        for _ in range(100):
            before, counter = time.monotonic_ns(), read()
            pairs.append((time.monotonic_ns() - before, before, counter))
        return min(pairs)[1:]

    start, first = now()
    time.sleep(seconds)
    end, last = now()
    return round((last - first) * 1_000_000 / (end - start))
