"""How fresh the data is, and the figures for Prometheus."""
