"""How fast this machine trains the paper's networks, compared with the alternatives."""
