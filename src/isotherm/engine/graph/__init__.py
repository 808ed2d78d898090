"""Traced training steps and the passes that rewrite them."""
