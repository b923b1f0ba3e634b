"""What the engine is compared with: each peer is spelt as a user of it would write it."""
