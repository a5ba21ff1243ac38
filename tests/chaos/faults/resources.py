"""Too few descriptors, too little memory, other cores."""

from __future__ import annotations

import os
import random
import resource
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
METASPACE_MEGABYTES = 64  # of which Spark takes more than twice as much; with a small heap it would not start at all
OUT_OF_MEMORY_SECONDS = 60.0


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
    """A JVM that runs out of its memory has to end at once. Then one that has enough."""
    pipeline = subject.system.pipeline
    with subject.supervisor.paused:
        pipeline.kill()
        start = pipeline.log_end()
        pipeline.start(_JAVA_OPTIONS=f"-XX:MaxMetaspaceSize={METASPACE_MEGABYTES}m")
        deadline = time.monotonic() + OUT_OF_MEMORY_SECONDS
        while pipeline.is_running and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not pipeline.is_running, f"it goes on without memory: {pipeline.log(start)[-500:]}"
        assert "OutOfMemoryError" in pipeline.log(start), pipeline.log(start)[-500:]
        pipeline.kill()
        pipeline.start(_JAVA_OPTIONS="")
    return f"with {METASPACE_MEGABYTES} MB of metaspace it ended"


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
    fault("out_of_memory", out_of_memory, "pipeline", 0.15, is_quick=False),
    fault("other_resources", other_resources, "pipeline", 0.3, is_quick=False),
)
