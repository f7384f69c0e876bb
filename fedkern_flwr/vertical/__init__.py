"""Vertical splits: the messages of FDSKL, who holds what, angles and the model of them."""
