"""Executors run fleets somewhere and hand back their results; `local` is in this process."""
