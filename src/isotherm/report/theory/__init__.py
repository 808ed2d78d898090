"""The theory's figures."""
