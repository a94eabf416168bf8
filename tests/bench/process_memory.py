"""Resident memory of a process, now and at its peak, as the kernel counts it (/proc/PID/status).

Owns the reset of the peak: writing 5 to /proc/PID/clear_refs (proc(5)) sets it to what is resident now.
"""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path


def resident_bytes(pid: int | str) -> int:
    """Return what is resident now; `self` is this process."""
    return _status_bytes(pid, "VmRSS")


class Peak:
    """How far a process' resident memory grows from here on."""

    def __init__(self, pid: int | str) -> None:
        self._pid = pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._before = resident_bytes(pid)

    def growth_bytes(self) -> int:
        """Return the most it was above the beginning so far."""
        return max(0, _status_bytes(self._pid, "VmHWM") - self._before)


def give_back() -> None:
    """Give the kernel what this process has freed, so that new use is seen as growth."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(pid: int | str, field: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[0]) * 1024
