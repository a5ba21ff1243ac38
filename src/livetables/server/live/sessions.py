"""All clients of a process: how many, which are silent, and the status that all of them get."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from livetables.model.errors import ERROR_KINDS
from livetables.server.access.key import Key
from livetables.server.health.freshness import Status
from livetables.server.live import protocol
from livetables.server.live.serving import Pulse
from livetables.server.live.session import Session

MAX_SESSIONS = 10_000  # of the server and its relays together
WATCH_SECONDS = 1.0
STRANGE_ORIGINS_LOGGED = 100

CLOSE_UNAUTHORIZED = ERROR_KINDS["unauthorized"].close_code
CLOSE_TIMEOUT = ERROR_KINDS["timeout"].close_code
CLOSE_AGAIN = 1012  # the client is to connect again

log = logging.getLogger(__name__)


class Sessions:
    """All clients that have logged in, and how many have not yet."""

    def __init__(self) -> None:
        self.waiting = 0  # connected, not logged in
        self.elsewhere = 0  # clients of the server's other processes
        self._sessions: set[Session] = set()
        self._strange_origins: set[str] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def is_full(self) -> bool:
        return self.waiting + len(self._sessions) + self.elsewhere >= MAX_SESSIONS

    def add(self, session: Session) -> None:
        self._sessions.add(session)

    def remove(self, session: Session) -> None:
        self._sessions.discard(session)

    def send_away_strangers(self, key: Key) -> None:
        """End the sessions that logged in with a key that is not valid any more."""
        for session in list(self._sessions):
            role = key.role_of(session.token)
            if role is None:
                session.send_away(CLOSE_UNAUTHORIZED, "the key was changed: log in with the new one")
            elif role != session.role:  # what its page shows is for the role that it had
                session.send_away(CLOSE_AGAIN, f"the key has the role {role} now: log in again")

    def turned_away(self, origin: str) -> None:
        """Log a page that may not connect, once: the browser does not show why."""
        if origin not in self._strange_origins and len(self._strange_origins) < STRANGE_ORIGINS_LOGGED:
            self._strange_origins.add(origin)
            log.warning("a page of %s may not connect; add it to server.origins if it is yours", ascii(origin))

    async def watch(self, pulse: Pulse) -> None:
        """Send everybody a new status, and silent clients a heartbeat; close dead sessions. Runs forever."""
        sent: object = None
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                sent = self._look_after(pulse.status(), sent)
            except Exception:  # one bad second must not be the last one
                log.exception("cannot look after the sessions")

    def _look_after(self, status: Status, sent: object) -> object:
        cause = (status.state, status.message, status.spark_ui, [source.lag_records for source in status.sources])
        now = time.monotonic()
        for session in list(self._sessions):
            if cause != sent:
                session.send_status(protocol.status(status))
            elif now - session.spoke > protocol.HEARTBEAT_SECONDS:
                session.spoke = now
                session.reply(protocol.heartbeat(datetime.now(UTC)))
            if now - session.heard > protocol.IDLE_SECONDS:
                session.send_away(CLOSE_TIMEOUT, f"nothing heard for {protocol.IDLE_SECONDS} s: send heartbeats")
        return cause
