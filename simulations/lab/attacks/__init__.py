"""Attacks on what the server sees: the evidence for what secure sums protect."""
