"""What a generation is for: the topics and the join that are wanted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from livetables.model.joins import JOIN_KINDS, JoinType
from livetables.model.spec import GenerationSpec

SWITCHED_VIEW = "final_ui"


@dataclass(frozen=True)
class Wanted:
    """The topics and the join that are wanted: everything that control messages decide."""

    topics: Mapping[str, str]  # by table
    join: JoinType | None  # of the view that follows joinType; None where no view does

    @classmethod
    def by(cls, spec: GenerationSpec) -> Wanted:
        """What the configuration says, before any message."""
        view = switched_view(spec)
        topics = {table.name: table.topic for table in spec.tables}
        return cls(topics, None if view is None else next(v.join for v in spec.views if v.name == view))

    def applied_to(self, spec: GenerationSpec) -> GenerationSpec:
        """The generation to build: the configured one on these topics, with this join."""
        view, join = switched_view(spec), JOIN_KINDS[self.join] if self.join else None
        return GenerationSpec(
            tuple(replace(table, topic=self.topics[table.name]) for table in spec.tables),
            tuple(
                replace(v, join=join.name, lookback_seconds=v.lookback_seconds if join.has_lookback else None)
                if v.name == view and join
                else v
                for v in spec.views
            ),
        )


def switched_view(spec: GenerationSpec) -> str | None:
    """The view that joinType is about, if it is declared. Other views keep the join that they are declared with."""
    return SWITCHED_VIEW if any(view.name == SWITCHED_VIEW for view in spec.views) else None
