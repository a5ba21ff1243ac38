"""The endpoints beside WebSocket: HTTP, Arrow Flight, frames of the pipeline, control messages."""
