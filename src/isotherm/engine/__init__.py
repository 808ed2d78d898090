"""Engines: `reference` defines what a run is, `fleet` trains many at once and gives the same numbers."""
