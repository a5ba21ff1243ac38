"""The configuration as frozen values, with the defaults. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from livetables.config.kafka_properties import KafkaConfig
from livetables.model.spec import GenerationSpec


@dataclass(frozen=True)
class PipelineConfig:
    """Settings of the pipeline and its Spark driver."""

    master: str = "local[*]"
    driver_memory_megabytes: int = 2048
    shuffle_partitions: int = 2  # that join and write; fixed for a generation's life: another number builds a new one
    checkpoint_directory: str = ".livetables/checkpoints"  # a path, or the URL of storage that all executors share
    max_records_per_batch: int = 200_000  # of a backlog, of each topic
    batch_seconds: int = 300  # in real time, between two checkpoints: what a crash reads again
    server: str = "grpc://127.0.0.1:8766"  # the table server's Flight endpoint; grpc+tls:// if it is encrypted
    spark: Mapping[str, str] = field(default_factory=dict)  # further Spark settings, passed as they are
    server_ca: str | None = None  # the file of certificates to trust; see `server_ca`
    max_megabytes_per_batch: int = 512  # of a backlog, of each topic, by a sample of it


@dataclass(frozen=True)
class ServerConfig:
    """Settings of the table server."""

    host: str = "127.0.0.1"
    port: int = 8765  # browsers and HTTP; 0: any free one
    flight_port: int = 8766  # Python and the pipeline; 0: any free one
    store: str = ".livetables/store.duckdb"  # a file, or ":memory:" for tables that a restart builds again
    memory_megabytes: int = 1024  # of the tables and all queries together, and once more of all open views
    token_file: str | None = None  # the file with the keys and their roles; see `server_keys`
    origins: tuple[str, ...] = ()  # further web origins that may connect; the server's own always may
    tls_certificate: str | None = None  # PEM files, both or none: with them every endpoint is encrypted
    tls_key: str | None = None
    relays: int = 0  # processes that serve WebSockets beside the server's own: more than one core then does
    proxies: tuple[str, ...] = ()  # addresses and networks whose X-Forwarded-For and X-Forwarded-Proto count
    hide_raw_from_viewers: bool = False  # whether viewers get dead letters without the content of the records
    dead_letters_max: int = 100_000  # of a generation; beyond that, those of the oldest records are removed
    dead_letters_megabytes: int = 64  # of their values together; beyond that, the same

    @property
    def schemes(self) -> tuple[str, str]:
        """Return the schemes of its HTTP and its Flight addresses."""
        return ("https", "grpc+tls") if self.tls_certificate else ("http", "grpc")


@dataclass(frozen=True)
class ControlConfig:
    """Settings of the control topic: where it is, which topics messages may name, and for which system they are.

    They are on the cluster of the tables, unless there are Kafka properties of their own.
    """

    topic: str = "control"
    topics: tuple[str, ...] = ()  # patterns of the topics that control messages may name, like shop.*; empty: all
    system: str | None = None  # messages that name another system are rejected
    kafka: KafkaConfig | None = None


@dataclass(frozen=True)
class GenerationsConfig:
    """When a new generation takes over, and how long previous ones stay."""

    linger_seconds: int = 8  # 0: an old generation is retired at once
    max_lingering: int = 2  # with more, the oldest is retired at once
    # If any, so many old ones (True: all) stay for retire_after_seconds, and linger_seconds does not count.
    keep_generations: int | Literal[True] = 0
    retire_after_seconds: int | Literal["never"] = 900
    switch_after_seconds: int = 30  # while nothing is live, a generation is shown by then, caught up or not


@dataclass(frozen=True)
class Config:
    """Everything that can be configured."""

    kafka: KafkaConfig
    spec: GenerationSpec
    pipeline: PipelineConfig
    server: ServerConfig
    control: ControlConfig
    generations: GenerationsConfig
