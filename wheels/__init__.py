"""How the wheels are made: `livetables`, and `livetables-client`, which is a part of it."""
