"""What happened when: a device's trace as slices per engine unit, and Chrome's trace files, for runtime and tools."""
