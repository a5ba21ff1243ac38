"""Code that a Python process runs at its start, without knowing of it: Python's `sitecustomize`."""

from __future__ import annotations

from pathlib import Path

# Python's own `time.sleep` waits for a time of the monotonic clock, and libfaketime refuses such a wait.
SLEEP = """
import select, time
time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""
# On SIGUSR2 the driver has its JVM make arrays of 4 MB, and keeps them; py4j would copy bytes to the driver.
FILL_HEAP = """
import signal, threading, time
def fill_heap():
    from pyspark import SparkContext
    while SparkContext._gateway is None:
        time.sleep(0.1)
    gateway, kept = SparkContext._gateway, []
    while True:
        kept.append(gateway.new_array(gateway.jvm.long, 1 << 19))
signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=fill_heap, daemon=True).start())
"""


def with_code(directory: Path, *code: str) -> dict[str, str]:
    """Settings for a Python process that runs this first; the directory is made for it."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text("".join(code))
    return {"PYTHONPATH": str(directory)}
