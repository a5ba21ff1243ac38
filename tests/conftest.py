"""What all tests share: one Kafka for the whole run, and the marks of tests that need something heavy."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from livetables.jvm.session import start_session
from livetables.local.broker import Broker
from tests.support.server import ServerProcess


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "chaos: takes long, and is run by `make chaos`")
    config.addinivalue_line("markers", "kafka: needs a Kafka broker, which the tests start themselves")
    config.addinivalue_line("markers", "processes: starts servers or compilers, and is not in `make check`")
    config.addinivalue_line("markers", "spark: needs a Spark session, which the tests start themselves")
    # A shell that runs the tests in the background has them ignore Ctrl-C, and every program that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A running Kafka, for tests that do not harm it; each uses topics of its own (`unique_topic`)."""
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running table server, for tests that do not harm it; each has a generation of its own."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a test run; each test starts and stops its own queries."""
    session = start_session(master="local[2]", driver_memory_megabytes=2048)
    yield session
    session.stop()
