"""What there is: states, policies, filters, lanes, records, and the names of znodes. No procedure, no I/O."""
