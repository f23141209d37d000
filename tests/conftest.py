"""What all tests share."""

from hypothesis import settings

# The same examples in every run and no time limit per example: a test fails by its content, not by chance or a busy machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
