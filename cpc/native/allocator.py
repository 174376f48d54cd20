"""Keep freed memory in the process: on a CPU the allocator decides up to half of a training step.

glibc serves large tensors with fresh pages from the kernel and hands them back when they are freed, so every step pays
for clearing the same pages again. Its limits can be lifted while the process runs, as the environment variables
MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ would at its start.
"""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h


def keep_freed_memory() -> bool:
    """Ask glibc never to map large blocks and never to give memory back; the peak stays what it was.

    Returns:
        Whether it could be asked: False where the C library is not glibc or another allocator is preloaded.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))
