"""What `livetables doctor` looks at, one file for each kind of thing."""
