"""The life of a control message: inbox, resolve, decisions, orchestrator."""
