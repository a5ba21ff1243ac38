"""The whole system under all that can happen to it: `python -m tests.chaos` at full length, the tests a piece of it."""
