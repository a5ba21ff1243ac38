"""The Java side: which jars it needs, how they get here, and how a JVM and a Spark session are started."""
