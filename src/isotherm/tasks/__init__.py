"""What is trained: tasks, losses, metrics and their identity."""
