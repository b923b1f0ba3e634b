"""Workers: claim, run a handler, settle, until told to stop."""
