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
    "differences of rows of the parties below it in the tree, and bounds of their values; private "
    "directions do not prevent this",
}

_SIZES = "numbers of rows, labelled rows, held-out rows and columns per party, keyed hashes of ids"
_DECLARED = (
    "what each party declares: bound of its labels, whether rows have ids; digests of the names of "
    "columns and classes"
)


def seen_by(run: FDSKL) -> dict[str, Any]:
    """Return what server and clients see in a run, for its privacy ledger."""
    server = [_SIZES, "which rows of the parties belong together, and which are learned from"]
    server.append(_DECLARED)
    if run.order_seed >= 0:
        server.append("the order of rows, by which it can link those of runs with the same seed")
    if run.schedule == "one-shot":
        server.append("the width and regularization chosen, and their score in cross-validation")
    else:
        server.append("which rows are in which batch")
    server.append("each active party's counts on its held-out rows")
    passive = ["which of their rows are learned from, in which batch, and predicted"]
    if run.topology == "tree":
        passive.append(_TREE)
    never = ["rows in plain", "labels", "ids", "offsets", "coefficients", "predictions"]
    if run.frequencies == "private":
        never.append("directions")
    return {
        "server_sees": server,
        "active_parties_see": _active(run),
        "passive_parties_see": passive,
        "never_leaves_the_client": never,
    }


_TREE = (
    "o + b of the parties below them as real numbers: differences of their rows exactly if "
    "directions are shared, else up to a linear map; with shared directions also the rows "
    "approximately; and o itself where the two trees bring both o + b and b"
)


def _active(run: FDSKL) -> list[str]:
    if run.frequencies == "shared":
        seen = [
            "phases of known directions: differences of all rows in the columns of the others "
            "together; with one known record all rows"
        ]
    else:
        seen = [
            "phases of all rows that it trains on and predicts: distances between the rows of the "
            "others together, to about sqrt(2 / number of directions); these rows up to an unknown "
            "linear map, and the number of their columns, unless the kernel is very narrow",
            "with one known record more than the others have columns, or where columns do not "
            "depend on each other (such as binary ones), these rows themselves",
        ]
    holders = [p.partition for p in run.described_parties() if p.features]
    if any(len([p for p in holders if p != active]) == 1 for active in run.plan_.actives):
        seen.append("all this of a single party's columns")
    if len(run.plan_.actives) > 1:
        seen.append(
            "f on its batches and held-out rows; of two active parties each the other's part"
        )
    return [*seen, "which of its rows all parties hold", "its own coefficients"]
