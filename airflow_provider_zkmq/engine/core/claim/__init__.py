"""Claims: which task is next, and taking it."""
