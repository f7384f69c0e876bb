"""What a run of FDSKL shows to whom."""

from __future__ import annotations

from typing import Any

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
_TREE = (
    "o + b of the parties below them as real numbers: differences of their rows exactly if "
    "directions are shared, else up to a linear map; with shared directions also the rows "
    "approximately; and o itself where the two trees bring both o + b and b"
)
_SHARED = (
    "phases of known directions: differences of all rows in the columns of the others "
    "together; with one known record all rows",
)
_PRIVATE = (
    "phases of all rows that it trains on and predicts: distances between the rows of the "
    "others together, to about sqrt(2 / number of directions); these rows up to an unknown "
    "linear map, and the number of their columns, unless the kernel is very narrow",
    "with one known record more than the others have columns, or where columns do not "
    "depend on each other (such as binary ones), these rows themselves",
)


def seen_by(
    *,
    one_shot: bool,
    chosen: bool,
    shared: bool,
    tree: bool,
    ordered: bool,
    alone: bool,
    several: bool,
) -> dict[str, Any]:
    """Return what server and clients see in a run, for its privacy ledger.

    Parameters
    ----------
    one_shot, shared, tree : bool
        Schedule, frequencies and topology.
    chosen : bool
        Whether the active party chooses width and regularization.
    ordered : bool
        Whether rows are announced in an order that depends on a seed.
    alone : bool
        Whether beside some active party a single other one has columns.
    several : bool
        Whether there are several active parties.
    """
    server = [_SIZES, "which rows of the parties belong together, and which are learned from"]
    server.append(_DECLARED)
    if ordered:
        server.append("the order of rows, by which it can link those of runs with the same seed")
    if chosen:
        server.append("the width and regularization chosen, and their score in cross-validation")
    if not one_shot:
        server.append("which rows are in which batch")
    server.append("each active party's counts on its held-out rows")
    active = [*(_SHARED if shared else _PRIVATE)]
    if alone:
        active.append("all this of a single party's columns")
    if several:
        active.append(
            "f on its batches and held-out rows; of two active parties each the other's part"
        )
    passive = ["which of their rows are learned from, in which batch, and predicted"]
    never = ["rows in plain", "labels", "ids", "offsets", "coefficients", "predictions"]
    return {
        "server_sees": server,
        "active_parties_see": [
            *active,
            "which of its rows all parties hold",
            "its own coefficients",
        ],
        "passive_parties_see": [*passive, *([_TREE] if tree else [])],
        "never_leaves_the_client": [*never, *([] if shared else ["directions"])],
    }
