"""What a run of FDSKL shows to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fdskl import FDSKL

#: Option -> what is logged once when a run begins.
WARNINGS = {
    "shared": "frequencies shared draws directions that everybody knows: the active party can "
    "solve the phases for the columns of the others",
    "tree": "topology tree masks with real numbers in [0, 2 pi), as the paper does: a party learns "
    "differences of rows of the parties below it in the tree, and bounds of their values",
}

_SIZES = "numbers of rows, labelled rows, held-out rows and columns per party, keyed hashes of ids"


def seen_by(run: FDSKL) -> dict[str, Any]:
    """Return what server and clients see in a run, for its privacy ledger."""
    server = [_SIZES, "which rows of the parties belong together, and which are learned from"]
    if run.schedule == "one-shot":
        server.append("the width and regularization chosen, and their score in cross-validation")
    else:
        server.append("which rows are in which batch")
    server.append("each active party's counts on its held-out rows")
    active = [
        "phases of all rows that it trains on: the geometry of the other parties' rows under the "
        "kernel, and with many directions these rows up to an unknown linear map",
        "its own coefficients",
    ]
    if run.frequencies == "shared":
        active[0] = "phases of known directions: the other parties' columns of all rows, summed"
    if len(run.leaders) > 1:
        active.append("f on the rows of its batches; of two active parties each the other's part")
    passive = ["which of their rows are learned from and predicted"]
    if run.topology == "tree":
        passive.append("values of the parties below them in two trees, under real-valued masks")
    never = ["rows", "labels", "ids", "offsets", "coefficients", "predictions"]
    if run.frequencies == "private":
        never.append("directions")
    return {
        "server_sees": server,
        "active_parties_see": active,
        "passive_parties_see": passive,
        "never_leaves_the_client": never,
    }
