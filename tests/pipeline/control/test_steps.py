"""Steps of the loop whose circumstances cannot be provoked around a whole system, so that these are fakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from livetables.config.load import load_config
from livetables.kafka.topics import Topic, TopicProblem
from livetables.model.errors import PassingTopicError
from livetables.pipeline.control import orchestrator as module
from livetables.pipeline.control.orchestrator import UNDECIDED_SECONDS_MAX, Orchestrator
from livetables.pipeline.generations.supervision import RunningGenerations
from livetables.pipeline.generations.wanted import Wanted
from livetables.pipeline.table_server import FencedError

WANTED = Wanted.by(load_config(None, {}).spec)
AWAY = TopicProblem("it did not answer in time", is_passing=True)


class Sweep(Orchestrator):
    """The step that removes checkpoints of generations that nobody has."""

    def __init__(self, there: set[str], running: set[str], stored: set[str] | None) -> None:
        """`stored` are the server's; without them, another pipeline has the server."""
        self.removed: list[str] = []
        self._running = RunningGenerations(lingering=[cast(Any, SimpleNamespace(name=name)) for name in running])
        self._stored = stored
        checkpoints = SimpleNamespace(generations=lambda: there, remove=self.removed.append)
        self._context = cast(Any, SimpleNamespace(checkpoints=checkpoints))
        self._server = cast(Any, SimpleNamespace(generations=self._generations))

    def _generations(self) -> list[Any]:
        if self._stored is None:
            raise FencedError("another pipeline has taken over", "stop this one")
        return [SimpleNamespace(name=name) for name in self._stored]


def test_checkpoints_that_came_back_are_removed_and_those_of_generations_that_are_there_stay() -> None:
    names = [f"g{number}-00000000" for number in range(3)]
    sweep = Sweep({*names, "g2-00000000.damaged-20260131T000000Z", "notes"}, {names[0]}, {names[1]})
    sweep._sweep()
    assert sweep.removed == [names[2]]


def test_a_pipeline_that_was_passed_over_removes_no_checkpoint_of_its_successor() -> None:
    """Their checkpoints are on storage that both reach."""
    sweep = Sweep({"g9-00000000"}, set(), None)
    with pytest.raises(FencedError):
        sweep._sweep()
    assert sweep.removed == []


class Taking(Orchestrator):
    """The step that decides on messages, with one that names a topic, which does not answer."""

    def __init__(self, others: TopicProblem | Topic) -> None:
        """`others` is what is found of the topics in use."""
        self.unusable: list[dict[str, str]] = []
        self._running = RunningGenerations()
        self._kept = {}
        self._undecided_since = 0.0
        self._inbox = cast(Any, SimpleNamespace(trouble=None, take=lambda _: []))
        self._topics = cast(
            Any, SimpleNamespace(look=lambda names: {name: AWAY if name == "user_2" else others for name in names})
        )
        self._reporter = cast(Any, SimpleNamespace(is_due_now=lambda: None))
        self._decisions = cast(
            Any,
            SimpleNamespace(
                undecided=["message"],
                wanted=WANTED,
                topics_asked_for=lambda: {"user_2"},
                decide=lambda unusable, *_: self.unusable.append(unusable),
                decided=lambda: self._decisions.undecided.clear(),
            ),
        )


@pytest.fixture
def _long_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: UNDECIDED_SECONDS_MAX + 1))


@pytest.mark.usefixtures("_long_after")
def test_while_the_topics_in_use_do_not_answer_either_a_message_waits() -> None:
    """As when the control topic is on another cluster, which can be read."""
    taking = Taking(AWAY)
    with pytest.raises(PassingTopicError):
        taking._take_messages()
    assert taking.unusable == []


@pytest.mark.usefixtures("_long_after")
def test_a_topic_that_alone_does_not_answer_for_long_is_rejected() -> None:
    taking = Taking(Topic("user", "1", {0: 0}, {0: 0}))
    taking._take_messages()
    assert taking.unusable == [{"user_2": AWAY.reason}]
