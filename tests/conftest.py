"""Settings that all tests share."""

from hypothesis import settings

settings.register_profile("project", derandomize=True, deadline=None)
settings.load_profile("project")
