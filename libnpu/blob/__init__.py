"""blob."""
