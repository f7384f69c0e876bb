"""Solvers of the sums that the methods make, and losses."""
