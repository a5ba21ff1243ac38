"""Every kind of fault, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.faults import clocks, damage, disks, kills, links, pipelines, records, resources, stops, strangers
from tests.chaos.faults.fault import Fault

MODULES = (stops, links, records, pipelines, strangers, kills, disks, damage, resources, clocks)
FAULTS: Mapping[str, Fault] = {each.kind: each for module in MODULES for each in module.FAULTS}
QUICK = tuple(kind for kind, each in FAULTS.items() if each.is_quick)
