"""Runs trained as one tensor program."""
