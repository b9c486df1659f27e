"""Seeing what happens, beside the path: it may be lost, late or broken, and nothing depends on it."""
