"""What all tests share: one Kafka for the whole run, and the marks of tests that need something heavy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from livetables.pipeline.session import start_session
from livetables.up.broker import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kafka: needs a Kafka broker, which the tests start themselves")
    config.addinivalue_line("markers", "spark: needs a Spark session, which the tests start themselves")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares a fixture together, and begin with what takes longest, when tests run in two processes."""
    items.sort(key=lambda item: not _is_heavy(item))
    for item in items:
        group = "kafka and spark" if _is_heavy(item) else item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))


def _is_heavy(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("kafka", "spark"))


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A running Kafka, for tests that do not harm it; each uses topics of its own (`unique_topic`)."""
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a test run; each test starts and stops its own queries."""
    session = start_session(master="local[2]", driver_memory_megabytes=2048)
    yield session
    session.stop()
