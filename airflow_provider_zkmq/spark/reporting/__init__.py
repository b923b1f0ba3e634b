"""What the history answers: who waits, who fails and why, and how many consumers are needed."""
