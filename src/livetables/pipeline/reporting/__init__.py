"""What the pipeline reports of itself: the status tables and how they get to the server."""
