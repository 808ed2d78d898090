"""What makes layers fast on a GPU; nothing about the paper."""
