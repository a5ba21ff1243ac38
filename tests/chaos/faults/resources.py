"""Too few descriptors, too little memory, other cores."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.chaos.faults.fault import Inject, fault
from tests.chaos.subject import Subject

SECONDS_MIN, SECONDS_MAX = 0.5, 2.0
HERD = 20
SPARE_MEGABYTES = 16
HEAP_IS_FULL = "java.lang.OutOfMemoryError: Java heap space"


@contextmanager
def limited(pid: int, kind: int, most: int) -> Iterator[None]:
    """Lower a limit of a process for a while."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (most, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)


def descriptors(name: str) -> Inject:
    def inject(subject: Subject, chance: random.Random) -> str:
        """No file and no connection can be opened, and others want some."""
        pid, seconds = subject.process(name), chance.uniform(SECONDS_MIN, SECONDS_MAX)
        server = subject.system.server
        most = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1 + chance.randrange(3)  # noqa: PTH208
        with ExitStack() as opened, limited(pid, resource.RLIMIT_NOFILE, most):
            for port in (server.port, server.flight_port) * (HERD // 2):
                with suppress(OSError):
                    opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
            time.sleep(seconds)
        return f"{name} with {most} for {seconds:.1f} s"

    return inject


def memory(name: str) -> Inject:
    def inject(subject: Subject, chance: random.Random) -> str:
        """The process gets no more memory from the system."""
        pid, seconds = subject.process(name), chance.uniform(SECONDS_MIN, SECONDS_MAX)
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        with limited(pid, resource.RLIMIT_AS, used + SPARE_MEGABYTES * 2**20):
            time.sleep(seconds)
        return f"{name} for {seconds:.1f} s"

    return inject


def out_of_memory(subject: Subject, _: random.Random) -> str:
    """The heap of a JVM at work is filled: it has to end at once, and the pipeline with it."""
    pipeline, jvm = subject.system.pipeline, subject.process("jvm")
    start = pipeline.log_end()
    subject.signal("driver", signal.SIGUSR2)
    subject.wait(lambda: not Path(f"/proc/{jvm}").exists(), "a JVM without memory has ended")
    assert HEAP_IS_FULL in pipeline.log(start), f"it ended of something else: {pipeline.log(start)[-500:]}"
    return "of its heap"


def other_resources(subject: Subject, chance: random.Random) -> str:
    """A restart on another machine, as it were: other cores, another heap."""
    master, megabytes = chance.choice(("local[1]", "local[2]", "local[4]", "local[*]")), chance.choice((640, 768, 1024))
    with subject.supervisor.paused:
        subject.system.pipeline.kill()
        subject.system.pipeline.start(
            LIVETABLES_PIPELINE_MASTER=master, LIVETABLES_PIPELINE_DRIVER_MEMORY_MEGABYTES=str(megabytes)
        )
    return f"{master}, {megabytes} MB"


FAULTS = (
    fault("descriptors_server", descriptors("server"), "server", 3),
    fault("descriptors_jvm", descriptors("jvm"), "pipeline", 1, is_quick=False),
    fault("memory_server", memory("server"), "server", 1.5, is_quick=False),
    fault("memory_jvm", memory("jvm"), "pipeline", 0.3, is_quick=False),
    fault("out_of_memory", out_of_memory, "pipeline disk", 0.3, is_quick=False),
    fault("other_resources", other_resources, "pipeline", 0.3, is_quick=False),
)
