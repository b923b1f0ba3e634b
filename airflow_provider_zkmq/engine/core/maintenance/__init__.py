"""What keeps a queue going: consumers, rescue, promotion, clean-up, pending operations."""
