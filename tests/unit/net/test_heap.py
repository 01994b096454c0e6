import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
import threading
from pathlib import Path
from pipeline.net.heap import keep_one_heap

def resident_mib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

def work():
    kept.append([bytes(2000) for _ in range(40_000)])
    kept.append(bytes(1000))
    del kept[0]

keep_one_heap()
kept = []
before = resident_mib()
for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del kept[1:]
ctypes.CDLL(None).malloc_trim(0)
print(resident_mib() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone has these functions")
def test_memory_freed_by_threads_can_return_to_the_system() -> None:
    made = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, timeout=400)
    assert float(made.stdout) < 20


GAPS = """
from pathlib import Path
from pipeline.net.heap import free_large_blocks

def resident_mib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

free_large_blocks()
del (raised := [bytes(30 << 20)])[0]
before = resident_mib()
kept = []
for _ in range(30):
    large = bytearray(4 << 20)
    kept.append(bytearray(500_000))
    del large
    kept[-1][:] = bytes(500_000)
blocks = [bytearray(4 << 20) for _ in range(20)]
kept += [bytearray(100_000)]
del blocks
print(resident_mib() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone has this function")
def test_large_blocks_return_to_the_system() -> None:
    made = subprocess.run([sys.executable, "-c", GAPS], check=True, capture_output=True, timeout=60)
    assert float(made.stdout) < 20


AGAIN = """
import resource
from pipeline.net.heap import free_large_blocks

free_large_blocks()
for number in range(300):
    if number == 100:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytes(200_000) for _ in range(5)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone has this function")
def test_blocks_that_are_not_large_use_the_same_memory_again() -> None:
    made = subprocess.run([sys.executable, "-c", AGAIN], check=True, capture_output=True, timeout=60)
    assert int(made.stdout) < 2_000


BETWEEN = """
from pathlib import Path
from pipeline.net.heap import return_free_memory

def resident_mib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

before = resident_mib()
blocks = [bytes(50_000) for _ in range(2_000)]
last = bytes(50_000)
del blocks
return_free_memory()
print(resident_mib() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone has this function")
def test_free_memory_before_a_block_in_use_returns_to_the_system() -> None:
    made = subprocess.run([sys.executable, "-c", BETWEEN], check=True, capture_output=True, timeout=60)
    assert float(made.stdout) < 20
