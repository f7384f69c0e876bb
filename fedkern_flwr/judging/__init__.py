"""Evaluate models on held-out rows: counts of each party, and figures from their sum."""
