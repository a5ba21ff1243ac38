"""What the writers of a store share."""

from __future__ import annotations

from dataclasses import dataclass

from livetables.server.storage.catalogue import Catalogue
from livetables.server.storage.database import Database
from livetables.server.storage.feed import Feed
from livetables.server.storage.fencing import Fencing
from livetables.server.storage.listeners import Listeners
from livetables.server.storage.pending import PendingFrames
from livetables.server.storage.staging import Staging
from livetables.server.storage.unknown_fields import UnknownFields


@dataclass(frozen=True)
class StoreContext:
    """One of each, for all writers of a store."""

    database: Database
    catalogue: Catalogue
    fencing: Fencing
    pending: PendingFrames
    staging: Staging
    feed: Feed
    listeners: Listeners
    unknown_fields: UnknownFields
