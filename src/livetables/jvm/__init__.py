"""The Java side: which jars it needs, and how they get here."""
