"""The page and figures of a diagnosis."""
