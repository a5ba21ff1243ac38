"""What all generations of a pipeline share: the Spark session, the configuration, the key, and how they are named."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from livetables.config.load import server_ca
from livetables.config.values import Config
from livetables.kafka.topics import Topic
from livetables.model.spec import GenerationSpec
from livetables.model.wire import RUNS_PER_PIPELINE
from livetables.pipeline.flow.query import Target
from livetables.pipeline.generations.checkpoints import Checkpoints

LAYOUT_VERSION = 2  # of the content of a checkpoint; a new one builds every generation anew
SERVER_PATIENCE_SECONDS = 60.0
NAME = re.compile(r"g(?P<number>[0-9]+)-(?P<fingerprint>[0-9a-f]{8})")


@dataclass
class GenerationContext:
    """What all generations of a pipeline share."""

    spark: SparkSession
    config: Config
    token: str
    checkpoints: Checkpoints
    token_file: str | None = None  # read again when the server rejects the key
    pipeline_number: int = 0  # from the server, which refuses pipelines with an older one
    _starts: count[int] = field(default_factory=lambda: count(1))

    def target(self, url: str) -> Target:
        """Return where the writers of the next query send their frames."""
        ca_file = server_ca(self.config) if url.startswith("https:") else None
        return Target(
            url,
            self.token,
            self.pipeline_number * RUNS_PER_PIPELINE + next(self._starts),
            token_file=self.token_file,
            authorities=Path(ca_file).read_text() if ca_file else None,
            patience_seconds=SERVER_PATIENCE_SECONDS,
        )

    def fingerprint(self, spec: GenerationSpec, topics: Mapping[str, Topic]) -> str:
        """Return a hash of everything that a checkpoint depends on: with another one it cannot be resumed."""
        settings = {name: value for name, value in self.config.pipeline.spark.items() if name.startswith("spark.sql.")}
        partitions = self.spark.conf.get("spark.sql.shuffle.partitions")
        topic_ids = sorted((topic.name, topic.topic_id) for topic in topics.values())
        text = repr((LAYOUT_VERSION, spec, partitions, sorted(settings.items()), topic_ids))
        return hashlib.sha256(text.encode()).hexdigest()[:8]
