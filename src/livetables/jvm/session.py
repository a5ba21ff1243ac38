"""The Spark session: every setting livetables needs, each with its reason, in one place."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from livetables.config.settings import Secret
from livetables.jvm.jars import engine_jar, jar_directory

# Hadoop's own default files put over a thousand properties into the configuration, and the join node broadcasts that
# configuration several times while it plans each batch: half of the driver's time. Nearly empty files of the same
# names, first on the class path, leave about thirty (planning 81 to 28 ms, measured).
HADOOP_DEFAULTS = Path(__file__).parent / "hadoop_defaults"

ANYWHERE: Mapping[str, str] = {
    # A server that nobody needs, and that has no authentication.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Kafka timestamps are instants: no reader's time zone may change a value.
    "spark.sql.session.timeZone": "UTC",
    # Columns have exactly the names of the records' fields.
    "spark.sql.caseSensitive": "true",
    # State on disk, with only the changes of a batch uploaded: memory does not grow with the topics.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting keys costs a look-up per write.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # One cache for all state, of all generations. By default each store has one of its own, of 8 MB, which misses on
    # nearly every look-up once the state has a few million rows, and which stays when the store goes (SPARK-57183).
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "512",
    # Micro-batches and real time share a checkpoint only with this one, from its first batch on.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # How long a record may wait for others on its way to its key: half of the latency with Spark's 50.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "4",
    # The server refuses a gap in the batches; a second check of every commit of the state finds nothing more.
    "spark.sql.streaming.stateStore.commitValidation.enabled": "false",
    # Code for whole stages is generated and compiled again for every query that starts: without it the first batch of a
    # process takes 6.9 instead of 8.7 s and real time starts in 3.4 instead of 5.6, at the same rate of a backlog.
    "spark.sql.codegen.wholeStage": "false",
    # The text of every plan is made for a UI that does not show more than this.
    "spark.sql.ui.explainMode": "simple",
    # The start of the last task is reported at once, not with the next heartbeat: a build in real time waits for it.
    "spark.ui.liveUpdate.period": "0",
    # Each generation reads with consumers of its own; those of one that has retired would stay for five minutes.
    "spark.kafka.consumer.cache.timeout": "60s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "60s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "15s",  # which looks at a few only each time
    # A batch without records would only delay the next one with records.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A query that does not end when it is stopped ends the process, which is then restarted: nothing waits for ever.
    "spark.sql.streaming.stopTimeout": "120s",
    # Adaptive planning is off in streaming anyway, and would re-plan the driver's own small queries.
    "spark.sql.adaptive.enabled": "false",
    "spark.broadcast.compress": "false",
}

# Where driver and executors are on this machine: Spark picks an interface on its own otherwise.
LOOPBACK = "127.0.0.1"
ONE_MACHINE: Mapping[str, str] = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}

# Only where driver and tasks share one JVM and one disk.
LOCAL_ONLY: Mapping[str, str] = {
    # Hadoop's local file system forks a shell for every checkpoint file: 45 ms a write instead of 2.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # There are no other machines to be near to.
    "spark.locality.wait": "0",
    # Threads for the messages between driver and tasks: one for each slot otherwise, and each of them takes memory.
    "spark.rpc.netty.dispatcher.numThreads": "8",
}

# What Spark's own pages and logs hide by its name, beside whatever a user keeps secret.
SPARK_REDACTION = "(?i)secret|password|token|access[.]?key|jaas|credential"

# A deep plan overflows the default stack in the stream's thread; parallel GC has the best throughput on few cores.
# Below its size, metaspace that grows makes no full collections: with Java's 21 MB there are several in the first
# minute, of 85 to 320 ms each, the last of them when real time starts (measured).
# A JVM that has run out of memory may continue without one of its threads: it exits instead, and is restarted.
JVM_OPTIONS = "-Xss16m -XX:+UseParallelGC -XX:MetaspaceSize=256m -XX:+ExitOnOutOfMemoryError"


# In real time every partition of every topic and shuffle, of every generation that runs, has a task of its own, all at
# once. They mostly wait, so there may be far more than cores.
SLOTS = 1024


def is_one_process(master: str) -> bool:
    """Return whether a `master` runs all tasks in the driver's own JVM."""
    return re.match(r"local(\[|$)", master) is not None


def with_room(master: str) -> str:
    """Return a `master` on this machine with a slot for every task; others unchanged."""
    return f"local[{SLOTS}]" if is_one_process(master) else master


def session_settings(
    *,
    master: str = "local[*]",
    driver_memory_megabytes: int = 2048,
    shuffle_partitions: int = 2,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return all settings of Spark under a `master`. `extra` settings win over everything here."""
    jars = [*sorted(str(jar) for jar in jar_directory("spark").glob("*.jar")), str(engine_jar())]
    settings = {
        **ANYWHERE,
        "spark.master": master,
        "spark.app.name": "livetables",
        "spark.driver.memory": f"{driver_memory_megabytes}m",
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
        "spark.executor.extraJavaOptions": JVM_OPTIONS,
        # Fixed for a checkpoint's life.
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
    }
    if master.startswith("local"):
        settings |= ONE_MACHINE
    if is_one_process(master):
        settings |= LOCAL_ONLY
        settings["spark.driver.extraClassPath"] = os.pathsep.join([str(HADOOP_DEFAULTS), *jars])
    else:
        settings["spark.jars"] = ",".join(jars)
    settings |= extra or {}
    # Hadoop's are shown without that beginning too.
    hidden = [re.escape(n.removeprefix("spark.hadoop.")) for n, v in settings.items() if isinstance(v, Secret)]
    return {"spark.redaction.regex": "|".join([SPARK_REDACTION, *hidden]), **settings}


def submitted_settings() -> dict[str, str]:
    """Return the settings of spark-submit, in a process that it has started: the JVM runs already, and has them."""
    SparkContext._ensure_initialized()  # connects to that JVM, as the session will
    return dict(SparkConf().getAll())


def start_session(
    *,
    master: str = "local[*]",
    driver_memory_megabytes: int = 2048,
    shuffle_partitions: int = 2,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark under any `master`. `extra` settings win over everything here."""
    settings = session_settings(
        master=master,
        driver_memory_megabytes=driver_memory_megabytes,
        shuffle_partitions=shuffle_partitions,
        extra=extra,
    )
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    settings["spark.master"] = with_room(settings["spark.master"])
    on_interrupt = signal.getsignal(signal.SIGINT)
    _start_jvm({name: value for name, value in settings.items() if not isinstance(value, Secret)})
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # PySpark takes Ctrl-C for itself and cancels jobs in the middle of a batch; how to stop is the program's decision.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_interrupt)
    if is_one_process(master):  # the tasks of a cluster compare the driver's clock with their own
        jvm = spark._jvm
        assert jvm is not None
        jvm.org.apache.spark.sql.execution.datasources.v2.LowLatencyClock.setClock(
            jvm.livetables.MatchOperator.SteadyClock()
        )
    # Every stop of a query in real time would log some hundred lines. Why a query died, the orchestrator logs.
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start the driver's JVM, if none runs yet. Its command line is visible in the list of processes: secrets are set
    later."""
    if SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False)
        for name, value in settings.items():
            conf.set(name, value)
        SparkContext._ensure_initialized(conf=conf)
