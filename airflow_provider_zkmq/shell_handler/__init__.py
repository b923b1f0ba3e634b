"""The handler of `zkmq worker --exec`: a shell command for each task."""
