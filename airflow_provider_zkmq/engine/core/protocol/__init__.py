"""The operations that procedures yield, what a client remembers, and transactions whose outcome is never guessed."""
