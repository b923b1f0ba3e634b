"""The command line: `zkmq`."""
