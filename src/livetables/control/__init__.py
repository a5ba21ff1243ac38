"""Topics and joins exchanged while people watch: message, resolve, generation are the life of a control message."""
