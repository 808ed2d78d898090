"""Figures of the theory."""
