"""Online multi-kernel learning: its messages and its mathematics."""
