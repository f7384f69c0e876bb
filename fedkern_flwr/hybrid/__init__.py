"""Hybrid splits: the messages of FedCG, who holds what, landmarks."""
