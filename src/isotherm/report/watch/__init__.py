"""The live page of a store: read from it again and again, served on this machine, or frozen into one file."""
