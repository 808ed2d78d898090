"""Custom operations, each one node of a trace: its definition in PyTorch, its fake and its kernel."""
