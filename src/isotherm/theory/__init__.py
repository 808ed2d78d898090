"""What can be computed exactly, and what can be measured cheaply: the paper's theory, and probes of a user's model.

Nothing here trains runs of a sweep; `isotherm.engine` does.
"""
