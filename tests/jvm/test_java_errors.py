"""Which of Java's exceptions come from a damaged checkpoint."""

from __future__ import annotations

import pytest

from livetables.jvm.java_errors import is_of_checkpoint, is_of_lost_records

STREAMING = "at org.apache.spark.sql.execution.streaming"
TASK = f"""
    {STREAMING}.operators.stateful.transformwithstate.TransformWithStateExec.processNewData(TransformWithStateExec.scala)
    {STREAMING}.state.package$StateStoreOps.$anonfun$mapPartitionsWithStateStore$1(package.scala)
    {STREAMING}.state.StateStoreRDD.compute(StateStoreRDD.scala)
    at org.apache.spark.rdd.RDD.computeOrReadCheckpoint(RDD.scala)"""
DRIVER = f"""
    {STREAMING}.runtime.MicroBatchExecution.executeOneBatch(MicroBatchExecution.scala)
    {STREAMING}.runtime.StreamExecution.runStream(StreamExecution.scala)"""


@pytest.mark.parametrize(
    "trace",
    [
        f"java.lang.IllegalStateException: Incomplete log\n{STREAMING}.checkpointing.OffsetSeqLog.deserialize{DRIVER}",
        f"java.io.EOFException\n{STREAMING}.checkpointing.HDFSMetadataLog.get(HDFSMetadataLog.scala){DRIVER}",
        f"java.util.zip.ZipException: not a zip\n{STREAMING}.state.RocksDBFileManager.loadCheckpointFromDfs{TASK}",
        f"org.rocksdb.RocksDBException: Corruption: bad magic\nat org.rocksdb.RocksDB.open(Native Method){TASK}",
        f"org.apache.spark.SparkIllegalStateException: [MALFORMED_LOG_FILE] Log file was malformed{DRIVER}",
        f"com.fasterxml.jackson.core.JsonParseException\n{STREAMING}.runtime.StreamMetadata$.read",
    ],
)
def test_what_fails_where_a_checkpoint_is_read_is_damage(trace: str) -> None:
    assert is_of_checkpoint(trace)


@pytest.mark.parametrize(
    "trace",
    [
        f"java.io.IOException: the server does not answer\nat livetables.FrameWriter.process(FrameWriter.java){TASK}",
        f"java.lang.ArithmeticException: long overflow{TASK}",
        f"org.apache.kafka.common.errors.TimeoutException: no answer{DRIVER}",
        f"java.io.IOException: No space left on device\n{STREAMING}.checkpointing.HDFSMetadataLog.write{DRIVER}",
        f"java.io.IOException: File too large\n{STREAMING}.checkpointing.HDFSMetadataLog.write{DRIVER}",
        f"java.lang.OutOfMemoryError: Java heap space\n{STREAMING}.state.RocksDB.load{TASK}",
    ],
)
def test_what_fails_elsewhere_or_for_want_of_something_is_not(trace: str) -> None:
    assert not is_of_checkpoint(trace)


@pytest.mark.parametrize(
    "trace",
    [
        f"java.lang.IllegalStateException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may be lost{TASK}",
        f"org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position 68 is out of range{TASK}",
    ],
)
def test_records_that_kafka_no_longer_has_are_recognised_in_both_modes(trace: str) -> None:
    assert is_of_lost_records(trace)
    assert not is_of_checkpoint(trace)


def test_a_kafka_that_does_not_answer_has_lost_nothing() -> None:
    assert not is_of_lost_records(f"org.apache.kafka.common.errors.TimeoutException: no answer{DRIVER}")
