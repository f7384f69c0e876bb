"""Kernels and their random features."""
