"""Live, joined, hot-swappable tables from Kafka through Spark."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from livetables.client import connect

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """`livetables.connect`, imported when it is used: nothing else here needs what it needs."""
    if name in __all__:
        import livetables.client

        return getattr(livetables.client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
