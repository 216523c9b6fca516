"""capi."""
