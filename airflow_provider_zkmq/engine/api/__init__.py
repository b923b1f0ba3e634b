"""What callers hold: connections, queues, claims, transactions; blocking and on an event loop."""
