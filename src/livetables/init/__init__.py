"""How `livetables init` comes from topics to a configuration: inference.py proposes, document.py writes it down."""
