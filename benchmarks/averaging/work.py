"""What is averaged: a vector that each client moves towards the mean of its own rows."""

import os

import numpy as np

CLIENTS = int(os.environ.get("AVERAGING_CLIENTS", "10"))
LENGTH = int(os.environ.get("AVERAGING_LENGTH", "100000"))
MOST, BOUND, WIDTH = 40, 8.0, 4


def examples(context):
    """Return the rows of a client, of different numbers."""
    k = int(context.node_config["partition-id"])
    return np.random.default_rng(k).uniform(-1.0, 1.0, (20 + k % (MOST - 19), WIDTH))


def step(vector, rows):
    """Return the vector after a step."""
    target = np.resize(rows.mean(axis=0), len(vector))
    return vector + 0.5 * (target - vector)
