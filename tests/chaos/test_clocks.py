"""Clocks of single processes, as the chaos runs set them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from livetables.local.broker import Broker
from tests.chaos.clocks import Clock
from tests.chaos.driver_code import SLEEP, with_code
from tests.support.kafka import unique_topic, wait_until

pytestmark = pytest.mark.processes

HOUR = 3600
DIFFERS_SECONDS = 600  # far more than any machine takes to answer, and far less than an hour
WAIT_MS = 200

PYTHON = f"""
import sys, threading, time
for _ in sys.stdin:
    started = time.monotonic()
    with (waiting := threading.Condition()):
        waiting.wait({WAIT_MS} / 2000)
    time.sleep({WAIT_MS} / 2000)
    print(time.time(), time.monotonic(), time.monotonic() - started, flush=True)
"""
JAVA = f"""
public class Clocks {{
    public static void main(String[] arguments) throws Exception {{
        while (System.in.read() >= 0) {{
            long started = System.nanoTime();
            synchronized (arguments) {{ arguments.wait({WAIT_MS}); }}
            long now = System.nanoTime();
            System.out.println(System.currentTimeMillis() / 1e3 + " " + now / 1e9 + " " + (now - started) / 1e9);
        }}
    }}
}}
"""

READER = """
import sys
from livetables.jvm.gateway import started_gateway
from livetables.kafka.topics import ControlTopic
with started_gateway({}) as jvm, ControlTopic(jvm, {"bootstrap.servers": sys.argv[1]}, sys.argv[2]) as topic:
    topic.create_if_missing()
    while True:
        topic.read(0.5)
        print(flush=True)
"""


@pytest.mark.parametrize("language", ["python", "java"])
def test_only_the_clock_that_people_read_is_set(language: str, tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    if language == "python":
        command = [sys.executable, "-c", PYTHON]
        settings = {**clock.settings, **with_code(tmp_path / "python", SLEEP)}
    else:
        (tmp_path / "Clocks.java").write_text(JAVA)
        command, settings = ["java", "-Xmx128m", str(tmp_path / "Clocks.java")], clock.settings
    process = subprocess.Popen(
        command, env={**os.environ, **settings}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ahead_seconds() -> tuple[float, float]:
        """How far both of its clocks are ahead of ours."""
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        read, monotonic, waited = map(float, process.stdout.readline().split())
        assert waited > WAIT_MS / 1000 * 0.9, "it waits as long as before"
        return read - time.time(), monotonic - time.monotonic()

    try:
        readings = [ahead_seconds()]
        for step in (HOUR, -HOUR):
            with clock.ahead(step):
                readings.append(ahead_seconds())
        readings.append(ahead_seconds())
    finally:
        process.kill()
        process.communicate()
    assert [round(read / HOUR) for read, _ in readings] == [0, 1, -1, 0]
    assert max(read for _, read in readings) - min(read for _, read in readings) < DIFFERS_SECONDS


@pytest.mark.kafka
@pytest.mark.spark
def test_a_clock_that_is_set_back_holds_no_reader_of_the_control_topic(broker: Broker, tmp_path: Path) -> None:
    """Kafka's client waits by that clock: where nothing comes, for as long as it was set back."""
    clock = Clock(tmp_path / "clock")
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, broker.bootstrap_servers, unique_topic("control")],
        env={**os.environ, **clock.java_home(tmp_path / "java")},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    reads: list[bytes] = []
    assert reader.stdout
    listener = threading.Thread(target=reads.extend, args=(reader.stdout,), daemon=True)
    listener.start()

    def wait_for_reads() -> None:
        wanted = len(reads) + 3
        wait_until(lambda: len(reads) >= wanted, "it reads")

    try:
        wait_for_reads()
        with clock.ahead(HOUR):
            wait_for_reads()
        wait_for_reads()
    finally:
        os.killpg(reader.pid, signal.SIGKILL)
        reader.wait()
        listener.join()
