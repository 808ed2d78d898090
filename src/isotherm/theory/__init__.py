"""The paper's theory: results in closed form, and cheap measurements on a user's model.

Nothing here trains the runs of a sweep; that is `isotherm.engine`.
"""
