#!/bin/sh
# The pipeline under spark-submit. Settings of spark-submit win over the configuration:
#
#   LIVETABLES_TOKEN=… deploy/spark-submit.sh my.toml --master spark://host:7077 --executor-memory 4g
#
# The environment of livetables comes first on the PATH: spark-submit, livetables and python3 are all in it. Spark's
# settings are written to spark.conf in the current directory; secrets are not among them.
set -eu
config=$1
shift
livetables pipeline --config "$config" --spark-properties > spark.conf
script=$(python3 -c 'from importlib.util import find_spec; print(find_spec("livetables.cli.pipeline").origin)')
exec spark-submit --properties-file spark.conf "$@" "$script" --config "$config"
