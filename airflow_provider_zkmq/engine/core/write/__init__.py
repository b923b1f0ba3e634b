"""What one transaction changes: places, drafts of tasks, moves from one state to another."""
