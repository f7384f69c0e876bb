"""How many draws of noise a second of a processor makes: ``python benchmarks/noise.py``."""

from __future__ import annotations

import time

from fedkern_flwr.privacy import skellam

DRAWS = 2_000_000


def measure(deviation: int) -> tuple[float, float]:
    """Return CPU seconds for the table of a standard deviation, and draws a CPU second after it."""
    start = time.process_time()
    skellam(deviation**2, 1)
    table = time.process_time() - start
    start = time.process_time()
    skellam(deviation**2, DRAWS)
    return table, DRAWS / (time.process_time() - start)


def main() -> None:
    """Print a line per standard deviation."""
    print("deviation  table [s]  draws a CPU second")
    for bits in (8, 12, 14, 15, 16):
        table, rate = measure(1 << bits)
        print(f"2^{bits:<7}  {table:9.3f}  {rate:18,.0f}")


if __name__ == "__main__":
    main()
