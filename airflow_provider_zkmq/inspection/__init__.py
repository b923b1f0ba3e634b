"""What operators see of queues, tasks and consumers: how they stand, for programs as JSON and for people in words."""
