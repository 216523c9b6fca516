"""libnpu."""
