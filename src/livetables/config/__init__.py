"""The configuration: one TOML file and the environment become one frozen value."""
