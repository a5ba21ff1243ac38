"""What a client looks at, and which state of it the client has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from livetables.model.errors import RequestError
from livetables.server.live import protocol
from livetables.server.live.serving import Viewport
from livetables.server.live.state import State


@dataclass(eq=False)
class Subscription:
    """What a client looks at, and what it has of it: what it was last sent.

    The way of a frame is one direction: the hub notifies, the session takes frames from here and writes them.
    """

    sub: int
    revision: int
    format: protocol.Format
    has_checksum: bool
    viewport: Viewport
    notify: Callable[[], None]  # what the hub calls when the viewport has a new state
    generation: str | None = None
    columns: tuple[tuple[str, str], ...] | None = None
    sequence: int | None = None  # of this very viewport
    problem: RequestError | None = None

    def frame_at_once(self) -> bytes | None:
        """The one frame that brings the client to the newest state, as the wire has it; None if one will not do."""
        state = self.viewport.state
        if (
            not isinstance(state, State)
            or self.format != "json"
            or self.sequence in (None, state.heading.sequence)
            or self.generation != state.heading.generation
            or self.columns != state.columns
        ):
            return None
        follows = self._is_one_before(state)
        return state.framed(self.sub, self.revision, follows=follows, has_checksum=self.has_checksum)

    def frames(self) -> list[str | bytes]:
        """The frames that bring the client to the newest state, which it is then taken to have."""
        state = self.viewport.state
        if isinstance(state, RequestError):
            frames: list[str | bytes] = [] if state is self.problem else [protocol.error(state, self.sub)]
            self.problem, self.sequence = state, None
            return frames
        if state is None or state.heading.sequence == self.sequence:
            return []
        rests: list[str] = []
        if self.generation not in (None, state.heading.generation):
            rests.append(protocol.rebound(state.heading, str(self.generation)))
        if self.columns != state.columns:
            rests.append(state.schema)
        follows, is_first = self._is_one_before(state), self.sequence is None
        self.has(state)
        if self.format == "arrow":
            window = protocol.arrow_snapshot(
                self.sub,
                self.revision,
                state.heading,
                state.options.offset,
                state.total,
                state.ids,
                state.arrow(),
                state.checksum if self.has_checksum else None,
            )
            return [*(protocol.about(self.sub, self.revision, rest) for rest in rests), window]
        rests.append(state.news(follows=follows, is_first=is_first, has_checksum=self.has_checksum))
        return [protocol.about(self.sub, self.revision, rest) for rest in rests]

    def has(self, state: State) -> None:
        """The client was sent this state."""
        state.count_sent(follows=self.format == "json" and self._is_one_before(state))
        self.generation, self.columns, self.sequence = state.heading.generation, state.columns, state.heading.sequence
        self.problem = None

    def skipped(self) -> int:
        """How many states the client will never see, because a newer one is there."""
        state = self.viewport.state
        if isinstance(state, State) and self.sequence is not None:
            return max(0, state.heading.sequence - self.sequence - 1)
        return 0

    def _is_one_before(self, state: State) -> bool:
        return self.sequence is not None and self.sequence + 1 == state.heading.sequence
