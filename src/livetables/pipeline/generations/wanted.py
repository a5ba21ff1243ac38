"""The topics and joins that are wanted: what a generation is for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from livetables.model.joins import JOIN_KINDS, JoinType
from livetables.model.spec import GenerationSpec


@dataclass(frozen=True)
class Wanted:
    """The topics and joins that are wanted: everything that control messages decide."""

    topics: Mapping[str, str]  # by table
    joins: Mapping[str, JoinType]  # by view

    @classmethod
    def by(cls, spec: GenerationSpec) -> Wanted:
        """Return what is configured, before any message."""
        return cls(
            {table.name: table.topic for table in spec.tables},
            {view.name: view.join for view in spec.views},
        )

    def applied_to(self, spec: GenerationSpec) -> GenerationSpec:
        """Return the generation to build: the configured one on these topics, with these joins."""
        return replace(
            spec,
            tables=tuple(replace(table, topic=self.topics[table.name]) for table in spec.tables),
            views=tuple(
                replace(
                    view,
                    join=self.joins[view.name],
                    lookback_seconds=view.lookback_seconds if JOIN_KINDS[self.joins[view.name]].has_lookback else None,
                )
                for view in spec.views
            ),
        )
