"""From the source to the operator: every record of every table, once for each column that views join it on.

Parser and operator are Java (`jvm/java/MatchOperator.java`), because Spark runs them for every record. Between them a
record is one value of bytes, which Spark does not decode: the plan stays small, and so does the time to create it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from livetables.model.spec import GenerationSpec
from livetables.pipeline.flow.plan import plan_json


def events(read: Sequence[DataFrame], spec: GenerationSpec, query: str) -> Any:
    """Return the events of all records, as a Java Dataset of bytes. `read` has the records of each table, in order.

    `query` is the name by which the operator finds what the server has reported to the query's writers.
    """
    spark = read[0].sparkSession
    jvm = spark._jvm
    assert jvm is not None
    operator, plan = jvm.livetables.MatchOperator, plan_json(spec)
    records = [DataFrame(operator.records(each._jdf, number, plan), spark) for number, each in enumerate(read)]
    return operator.events(reduce(DataFrame.unionAll, records)._jdf, plan, query)
