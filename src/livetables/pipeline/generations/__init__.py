"""Generations: their states, their queries, their checkpoints, and how far each has read."""
