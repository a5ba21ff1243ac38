"""Demo records for the shipped preset."""
