"""What the engine is compared with: each system is used as its users would."""
