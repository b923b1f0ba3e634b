"""What callers do to tasks: enqueue, settle, operate, transactions."""
