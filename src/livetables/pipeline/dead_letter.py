"""The reasons of dead letters, where the pipeline looks for them."""

from livetables.dead_letter import fault, readable, reason

__all__ = ["fault", "readable", "reason"]
