"""What a client remembers of one queue, in parts: each has one owner, a bound, and a rule for threads.

The rule for all of them: the drivers resume the procedures of a client under one lock, so that a procedure has its
client's memory to itself from one operation to the next, and must expect it changed after each. What may be touched
without the lock is said where it stands.
"""
