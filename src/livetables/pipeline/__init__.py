"""The pipeline's process: flow is the life of a record, control that of a control message."""
