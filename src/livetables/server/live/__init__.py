"""WebSocket clients: what each viewport shows, and the frames that say so."""
