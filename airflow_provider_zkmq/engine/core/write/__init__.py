"""What one transaction changes: places, new tasks, moves from one state to another."""
