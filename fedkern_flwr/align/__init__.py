"""Align tables before a run: common ids, common ranges of columns."""
