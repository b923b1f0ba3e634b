"""The engine beside other queues on the same server, taking turns: `make bench`; docs/performance.md."""
