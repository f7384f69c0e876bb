"""Write a made-up table like spambase: 4,601 rows of 57 skewed columns, zero for the most part.

``python benchmarks/spam_table.py FILE``; `docs/benchmarks.md` says what is timed with it.
"""

from __future__ import annotations

import sys

import numpy as np

ROWS, COLUMNS, DENSE = 4601, 57, 3


def main(path: str) -> None:
    """Write the table as CSV, its label is ``spam``."""
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.1, 0.35, COLUMNS)
    rate[-DENSE:] = 1.0
    y = (rng.random(ROWS) < 0.394).astype(int)
    lift = rng.normal(0.0, 0.8, COLUMNS)
    share = np.clip(rate * np.exp(np.outer(y - 0.4, lift)), 0.0, 1.0)
    there = rng.random((ROWS, COLUMNS)) < share
    x = there * np.exp(rng.normal(-1.0, 1.0, (ROWS, COLUMNS)) + 0.3 * np.outer(y - 0.4, lift))
    long = rng.normal(1.0, 1.0, (ROWS, DENSE)) * [1.0, 1.5, 1.5]
    x[:, -DENSE:] = np.exp(long + 0.5 * (y - 0.4)[:, None])
    names = ",".join([*(f"w{k}" for k in range(COLUMNS)), "spam"])
    np.savetxt(path, np.c_[np.round(x, 3), y], "%.6g", ",", header=names, comments="")


if __name__ == "__main__":
    main(sys.argv[1])
