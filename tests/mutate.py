"""Small faults that the tests must notice: each breaks one promise, and is made in a copy.

::

    python tests/mutate.py --jobs 2
    python tests/mutate.py --only 'sums-*' --table build/faults.md

``promises.toml`` has the faults. The tests that carry a promise's mark are run with its fault.
The tree is copied for every fault, so the one at hand is never changed, whatever interrupts this.
``--control`` runs the same tests without any fault: what fails then says nothing.
Ends with 1 if a fault survives or does not apply.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "helpers"))
from promises import Promise, promises

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("strategies", "clients", "simulations")
SKIPPED = shutil.ignore_patterns(".*", "build", "*.egg-info", "_build")
MARKS = "not (ray or app or packaging or deployment or long)"
LONGEST = 300  # seconds; a fault that makes tests wait for ever is noticed too
FOUND = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


def run(tests: list[str], fault: Promise | None = None) -> str:
    """Return what the tests said of a copy of the tree with the fault in it."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=SKIPPED, symlinks=True)  # byte code of what is the same
        for room in ROOMS:  # the package as it is installed
            Path(copy, "fedkern_flwr", room).symlink_to(copy / room)
        if fault is not None:
            path = copy / fault.file
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            if text.count(fault.find) != 1 or not tests:
                return "does not apply"
            path.write_text(text.replace(fault.find, fault.replace), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", MARKS, *tests]
        command += ["-p", "no:cacheprovider", "--no-header", "--tb=no"]
        around = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=around, capture_output=True, text=True, timeout=LONGEST
            )
        except subprocess.TimeoutExpired:
            return f"killed by {LONGEST} seconds"
    if done.returncode == 0:
        return "survived"
    found = FOUND.search(done.stdout)
    if done.returncode == 1 and found is not None:
        return f"killed by {found[1]}"
    return f"broken: {(done.stdout + done.stderr).strip().splitlines()[-1:]}"


def main() -> int:
    """Make the faults one after the other and print what became of each."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="GLOB", help="names of the faults to make")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--table", type=Path, help="file to which a line per fault is added")
    parser.add_argument("--control", action="store_true", help="run their tests without a fault")
    chosen = parser.parse_args()
    faults = [one for name, one in promises().items() if fnmatch(name, chosen.only)]
    if chosen.control:
        print(told := run(sorted({test for fault in faults for test in fault.tests})))
        return told != "survived"

    def one(fault: Promise) -> bool:
        started = time.monotonic()
        told = run(fault.tests, fault)
        seconds = time.monotonic() - started
        print(f"{fault.name}: {told}, {seconds:.0f} s", flush=True)
        if chosen.table:
            with chosen.table.open("a", encoding="utf-8") as table:
                table.write(f"| {fault.name} | `{fault.file}` | {told} | {seconds:.0f} |\n")
        return told.startswith("killed")

    if chosen.jobs == 1:  # in this thread: an interruption ends the tests and removes the copy
        killed = list(map(one, faults))
    else:
        with ThreadPoolExecutor(chosen.jobs) as pool:
            killed = list(pool.map(one, faults))
    print(f"{sum(killed)} of {len(killed)} killed")
    return 0 if all(killed) else 1


if __name__ == "__main__":
    sys.exit(main())
