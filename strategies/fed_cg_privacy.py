"""What FedCG shows to whom."""

from __future__ import annotations

from typing import Any

_SIZES = "numbers of rows, held-out rows and columns per party, keyed hashes of ids"
_DECLARED = (
    "what each party declares: block, bounds that follow from its ranges, bound of its labels, "
    "fewest rows of its own and of all in a fold; digests of the names of columns and classes, and "
    "of its landmarks"
)


def seen_by(
    *,
    direct: bool,
    alone: bool,
    predicts: bool,
    penalty: str,
    sampling: str,
    tunes: bool,
    variance: bool,
    weighted: bool = False,
    private: bool = False,
) -> dict[str, Any]:
    """Return what server and clients see in a run, for its privacy ledger.

    Parameters
    ----------
    penalty, sampling : str
        Options of the run.
    direct : bool
        Whether the normal equations are summed.
    alone : bool
        Whether there is one hospital.
    predicts : bool
        Whether nothing is fitted.
    tunes : bool
        Whether the width is chosen.
    variance : bool
        Whether the model predicts variances.
    weighted : bool (default: False)
        Whether classes count alike.
    private : bool
        Whether noise is added to what is released.
    """
    summed = "K^T K and K^T y" if direct else "K^T y and products of K^T K"
    server = [f"sums over the hospitals of {summed}, and of counts and histograms on held-out rows"]
    if predicts:
        whose = "the only hospital's" if alone else "sums over the hospitals of"
        server = [f"{whose} counts on held-out rows"]
    elif alone:
        server = [f"{summed} of the only hospital, and its counts on held-out rows"]
    if private:
        server = [f"{server[0]}, with noise; see budget"]
    if penalty == "rkhs" and not predicts:
        server.append("distances between landmarks")
    moments = {"N": "means and deviations", "C": "means and covariances"}.get(sampling, "")
    if moments and not predicts:
        server.append(f"{moments} of blocks that several parties hold")
    if tunes:
        server.append("these sums for each width and fold; the mean distance to the landmarks")
    if weighted and not predicts:
        server.append("how many training rows each class has over the hospitals")
    shared = [f"{moments} of their own block over all its holders"] if moments else []
    spread = ["of a centre's training rows the covariance, up to a motion and chance"]
    return {
        "server_sees": [
            *server,
            _SIZES,
            "which rows of which party belong together",
            _DECLARED,
        ],
        "hospitals_see": [
            "the kernel of their own rows: distances between their own patients, with many "
            "landmarks also along random directions of a centre's features; of a centre with a "
            "single feature that feature",
            "the coefficients, made of sums with noise"
            if private
            else "the coefficients; of two hospitals each can compute K^T(K a - y) of the other",
            *(spread if sampling in ("C", "auto") else []),
            *(["K^T K, when they predict with the model"] if variance else []),
            *shared,
        ],
        "centres_see": ["which of their rows belong to which hospital", *shared],
        "never_leaves_the_client": ["rows", "labels", "ids", "landmarks", "predictions"],
    }
