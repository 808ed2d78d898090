"""Runs told to an experiment tracker as they are stored; the store remains the record."""
