"""The processor that records name."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor's name as the system gives it."""
    name = platform.processor() or platform.machine()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True).stdout.strip() or name
    elif CPU_INFO.is_file():
        found = re.search(r"^model name\s*: (.+)$", CPU_INFO.read_text(encoding="utf-8"), re.M)
        name = found[1] if found else platform.machine()
    return " ".join(name.split())


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
