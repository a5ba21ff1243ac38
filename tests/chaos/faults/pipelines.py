"""More than one pipeline: a second one that starts, calls of one that was passed over, and one that wakes up."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import closing

from livetables.model.change import Batch
from livetables.model.errors import SinkError
from livetables.pipeline.server_client import ServerClient
from livetables.pipeline.table_server import FencedError, HeldError, NoAnswerError
from tests.chaos.faults.fault import fault
from tests.chaos.subject import Subject
from tests.support.server import TOKEN


def sink(subject: Subject, number: int | None = None) -> ServerClient:
    return ServerClient(subject.system.server.flight, TOKEN, number=number, patience_seconds=0)


def second_pipeline(subject: Subject, _: random.Random) -> str:
    """It may not have the server while the first one is alive."""
    with closing(sink(subject)) as second:
        try:
            number = second.start_pipeline()
        except HeldError as error:
            return error.problem[:100]
        except NoAnswerError:
            return "the server is away"
    subject.notes["a second pipeline has taken over"] += 1
    return f"it is pipeline {number}: the first one was silent"


def old_pipeline(subject: Subject, chance: random.Random) -> str:
    """What a pipeline wants that was passed over: all of it is refused."""
    generation = str((subject.asked(subject.system.status) or {}).get("generation"))
    with closing(sink(subject, number=0)) as old:
        calls: dict[str, Callable[[], object]] = {
            "drop": lambda: old.drop(generation),
            "publish": lambda: old.publish(generation),
            "put": lambda: old.put(Batch(generation, 0, ())),
            "report": lambda: old.report(generation, []),
        }
        name = chance.choice(list(calls))
        try:
            calls[name]()
        except FencedError:
            return f"{name} is refused"
        except NoAnswerError:
            return f"{name} has no answer"
        except SinkError as error:
            return f"{name}: {error.problem[:100]}"
    raise AssertionError(f"the server has taken {name} from an old pipeline")


def waking_pipeline(subject: Subject, _: random.Random) -> str:
    """It sleeps until another one has the server. When it wakes up it has to end, and is started again."""
    subject.signal("pipeline", signal.SIGSTOP)
    pid = subject.system.pipeline.pid
    try:
        with closing(sink(subject)) as second:
            subject.wait(lambda: second.start_pipeline() > 0, "a second pipeline takes over")
    finally:
        subject.signal("pipeline", signal.SIGCONT)
    subject.wait(lambda: subject.system.pipeline.pid != pid, "the old pipeline has ended, and was started again")
    return "it was passed over, and ended"


FAULTS = (
    fault("second_pipeline", second_pipeline, "holding", 4),
    fault("old_pipeline", old_pipeline, "holding server", 4),
    fault("waking_pipeline", waking_pipeline, "holding pipeline server links", 0.2, is_quick=False),
)
