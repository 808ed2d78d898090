"""How fast this machine trains what the paper trains, against what people use instead."""
