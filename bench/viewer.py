"""One WebSocket client on the newest rows of a view, that remembers what it got when."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.server import Window

HEARTBEAT_SECONDS = 30.0
ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Frame:
    """A frame that brought rows: when it had been parsed, and what the window was with it."""

    held: float
    generation: str
    rows: int


class Viewer:
    """Looks at the newest rows, on a thread of its own, from the first window on.

    Newest first is what somebody who follows a stream looks at, and the same for all joins: natural's rows are updated
    where they are, and come to the top only so. A client holds a row when it has parsed the frame that brings it.
    """

    def __init__(self, address: str, token: str, table: str, size: int) -> None:
        # By account (`_right_id`) of the generation that is shown: when it was first held, when sent.
        self.held: dict[int, tuple[float, str]] = {}
        self.frames: list[Frame] = []
        self.window = Window()
        view = {"sort": [{"column": "accounts_ts", "descending": True}], "size": size, "interval_ms": 10}
        self._socket: ClientConnection = connect(address, compression=None, max_size=None, ping_interval=None)
        self._socket.send(json.dumps({"type": "hello", "protocol": 1, "token": token}))
        self._socket.send(json.dumps({"type": "subscribe", "sub": 1, "table": table, "view": view}))
        self._first = threading.Event()
        self._is_closing = False
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="viewer", daemon=True)

    def wait_until_held(self, accounts: set[int], seconds: float) -> set[int]:
        """Wait until it has held all of them, or time is over; those that it has not."""
        deadline = time.monotonic() + seconds
        while (missing := accounts - self.held.keys()) and time.monotonic() < deadline:
            self._check()
            time.sleep(POLL_SECONDS)
        return missing

    def wait_for_another(self, generation: str, seconds: float) -> Frame:
        """Wait for the first frame, from now on, of another generation than this."""
        seen, deadline = len(self.frames), time.monotonic() + seconds
        while time.monotonic() < deadline:
            for frame in self.frames[seen:]:
                if frame.generation != generation:
                    return frame
            self._check()
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"still generation {generation} after {seconds:.0f} s")

    def longest_gap_ms(self, begin: float, end: float) -> float:
        """The longest time without a frame, among those that ended in this time."""
        times = [frame.held for frame in self.frames]
        gaps = [after - before for before, after in pairwise(times) if begin <= after < end]
        return max(gaps, default=end - begin) * 1000

    def _check(self) -> None:
        if self._problem:
            raise self._problem

    def _read(self) -> None:
        try:
            for frame in self._frames():
                held = time.time()
                if frame["type"] == "error":
                    raise RuntimeError(f"the server refused: {frame}")
                if frame.get("sub") is None:
                    continue
                self.window.apply(frame)
                if frame["type"] in ("snapshot", "patch"):
                    assert self.window.generation
                    if self.frames and self.frames[-1].generation != self.window.generation:
                        self.held = {}  # accounts of another topic have the same ids
                    self.frames.append(Frame(held, self.window.generation, len(self.window.rows)))
                    for account, sent in self._brought(frame):
                        self.held.setdefault(account, (held, sent))
                    self._first.set()
        except ConnectionClosed as closed:
            self._problem = None if self._is_closing else closed
        except Exception as problem:
            self._problem = problem
        finally:
            self._first.set()

    def _frames(self) -> Iterator[dict[str, Any]]:
        spoke = time.monotonic()
        while True:
            try:
                frame: dict[str, Any] = json.loads(self._socket.recv(timeout=HEARTBEAT_SECONDS))
                yield frame
            except TimeoutError:
                pass
            if time.monotonic() - spoke > HEARTBEAT_SECONDS:
                self._socket.send('{"type": "heartbeat"}')
                spoke = time.monotonic()

    def _brought(self, frame: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
        """The accounts of the rows that a frame has, or changes, with their times."""
        account, sent = self.window.columns.index("_right_id"), self.window.columns.index("accounts_ts")
        if frame["type"] == "snapshot":
            rows = frame["rows"]
        else:
            rows = [values for _, _, values in frame["inserted"]]
            rows += [self.window.rows[position][1] for position in {position for position, _, _ in frame["updated"]}]
        for row in rows:
            if row[account] is not None:
                yield int(row[account]), row[sent]

    def __enter__(self) -> Viewer:
        self._thread.start()
        if not self._first.wait(ANSWER_SECONDS) or not self.frames:
            self._close()
            raise self._problem or TimeoutError("no window came")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._is_closing = True
        self._socket.close()
        self._thread.join()
