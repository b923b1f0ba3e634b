"""The protocol, without I/O: procedures yield operations and receive their results.

Nothing in this package touches the network, a clock or a thread; it imports the standard library only.
"""
