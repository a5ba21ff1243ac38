"""Fields of records that are no columns: how many records had each."""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN_FIELDS_MAX = 1_000  # records may have any number of them
FIELD_CHARACTERS_MAX = 200  # of their names, which may be as long as a record
OTHER_FIELDS = "(others)"


class UnknownFields:
    """The counts since the server was started, by table and field."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def add(self, counted: Mapping[str, Mapping[str, int]]) -> None:
        for table, fields in counted.items():
            for field, records in fields.items():
                name = field if len(field) <= FIELD_CHARACTERS_MAX else f"{field[:FIELD_CHARACTERS_MAX]}…"
                is_known = (table, name) in self.counts or len(self.counts) < UNKNOWN_FIELDS_MAX
                key = (table, name if is_known else OTHER_FIELDS)
                self.counts[key] = self.counts.get(key, 0) + records
