"""Data of a party of FedCG: its table, its state of a run, a hospital's kernel.

The kernel is made as sums of distances arrive. In a deployment every message may start a new
process, and the rows are too large for the node's state: they are in a private file, erased at the
end of the run. If it is lost, the hospital reports that and they are made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, hash_ids, sort_order
from fedkern_flwr.errors import StateError
from fedkern_flwr.guard.freeze import FOLDS
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import CIRCLE, fourier_features, seed_fingerprint
from fedkern_flwr.kernels.product import kernel_from_distances, row_chunks
from fedkern_flwr.node.state import KeptState
from fedkern_flwr.solvers.least_squares import SPREAD, Equations, spread

from .table_client import Floats, PartyTable, RunFile


class HybridTable(PartyTable):
    """Rows of one party: a block of features; at a hospital labels and held-out rows.

    Parameters
    ----------
    *rows
        Party and rows, see :class:`~fedkern_flwr.clients.table_client.PartyTable`.
    ranges : array, shape (d, 2), or None
        Default [0, 1].
    **common
        Options of :class:`~fedkern_flwr.clients.table_client.PartyTable`.
    """

    def __init__(self, *rows: Any, ranges: ArrayLike | None, **common: Any) -> None:
        super().__init__(*rows, **common)
        unit = np.tile([0.0, 1.0], (self.features, 1))
        self.ranges = unit if ranges is None else self._numbers(ranges, "ranges")
        self._check_ranges()

    def in_order(self, rows: NDArray[Any]) -> Floats:
        """Return the features of some rows in table order, the same bits in each run."""
        return self.features_of(np.sort(rows))

    def folds(
        self, rows: NDArray[np.intp], folds: int, key: AlignmentKey | None
    ) -> NDArray[np.intp]:
        """Deal training rows to equal folds, in the order of keyed hashes of their ids.

        Folds are stable as long as the rows are, and unknown without the key.
        """
        hashes = hash_ids(self._ids[rows], key or self._own_key(), "fedkern-flwr folds")
        out = np.empty(len(rows), np.intp)
        out[sort_order(hashes)] = np.arange(len(rows)) % folds
        return out

    def _check_ranges(self) -> None:
        if self.ranges.shape != (self.features, 2) or not np.isfinite(self.ranges).all():
            raise self._bad(
                f"ranges of shape {self.ranges.shape} do not fit {self.features} features",
                code="FK-SHAPE-DIFFERS",
            )
        low, high = self.ranges.T
        if not (high >= low).all():
            raise self._bad("ranges that end before they begin", code="FK-RANGES-WRONG")
        for x in (self.x, self.x_test):
            outside = ((x < low) | (x > high)).any(axis=0)
            if outside.any():
                name = self.columns[int(np.argmax(outside))]
                more = f" (and {int(outside.sum()) - 1} more)" if outside.sum() > 1 else ""
                raise self._bad(
                    f"column {name!r}{more} has values outside its declared range",
                    code="FK-RANGES-OUTSIDE",
                )


class RunState(KeptState):
    """State of a FedCG party between two messages; small, never sent.

    The seed is the secret of the block's landmarks. ``settings`` has the requests' options and the
    progress of a hospital's kernel. ``arrays``:

    ``order`` (rows,), the table row at each announced position; ``gammas`` (1,) or (m,), (0,) while
    the width is being chosen; ``moments`` (2, d) for normal landmarks. At a hospital ``rows``, its
    announced rows in the kernel's order, ``gram`` and ``right``, the normal equations so far.
    """

    progress = ("done",)

    def settled(self, session: str) -> bytes:
        return super().settled(session) + np.asarray(self.arrays.get("gammas", ())).tobytes()

    @property
    def begun(self) -> bool:
        return "landmarks" in self.settings

    @property
    def tunes(self) -> bool:
        """Whether the width is chosen in this run: then distances are kept."""
        return not self.arrays["gammas"].size

    @property
    def landmarks(self) -> int:
        return int(self.settings["landmarks"])

    @property
    def fourier(self) -> bool:
        return self.settings.get("basis") == "fourier"

    @property
    def summed(self) -> int:
        return self.landmarks // 2 if self.fourier else self.landmarks

    @property
    def train(self) -> int:
        return int(self.settings["train"])

    @property
    def total(self) -> int:
        return int(self.settings["total"])

    @property
    def done(self) -> int:
        return int(self.settings["done"])

    def function(
        self, request: wire.EquationsRequest, block: str, ranges: Floats
    ) -> dict[str, Any]:
        """Return the identity of the summed function of a row, and how to request it again.

        Empty if other parties contribute to it, or weights depend on all rows: then this node
        cannot verify that it equals that of an earlier run.
        """
        settings, gammas = self.settings, request.gammas
        base = gammas[:, 0] / SPREAD[0]
        spreads = np.array_equal(gammas, spread(base, self.landmarks))
        if not settings["alone"] or request.balanced or request.folds > FOLDS:
            return {}
        if settings.get("passing") or not (spreads or gammas.shape[1] == 1):
            return {}
        drawn = max(self.landmarks, settings["sequence"])  # smaller numbers are the first of these
        drawn_as = [settings["kernel"], settings["sampling"]]
        about = json.dumps([*drawn_as, drawn, spreads, base.tolist()])
        landmarks = np.vstack([ranges.T, *self.arrays.get("moments", ())])
        function = seed_fingerprint(self.seed, about, block, landmarks)
        again = spreads and request.folds == 1 and settings["sampling"] == "U"
        how = wire.write_widths(settings["kernel"], base.tolist()) if again else ""
        return {"function": function, "how": how}

    def begin_kernel(self) -> None:
        self.settings["done"] = 0
        for name in ("gram", "right"):
            self.arrays.pop(name, None)


class KernelRows(RunFile):
    """File of rows of a kernel matrix, or of distances; parameters as :class:`RunFile`."""

    def __init__(self, folder: Path | None, session: str, partition: int, landmarks: int) -> None:
        super().__init__(folder, session, partition, "kernel")
        self.landmarks = landmarks

    def write(self, start: int, rows: Floats, *, first: int = 0) -> None:
        """Write rows from position ``start``; position ``first`` begins a new file.

        Raises
        ------
        StateError
            The rows before them are gone.
        """
        if start == first:
            self.path.unlink(missing_ok=True)
        else:
            self._check_length(start)
        with self.open() as file:
            file.seek(start * self.landmarks * 8)
            file.write(np.ascontiguousarray(rows, "<f8").data)

    def read(self, start: int, stop: int) -> Floats:
        """Return rows as a read-only memory map; StateError if they are gone."""
        if stop <= start:
            return np.zeros((0, self.landmarks))
        self._check_length(stop)
        offset, shape = 8 * self.landmarks * start, (stop - start, self.landmarks)
        with self.open() as file:
            return np.memmap(file, "<f8", mode="r", offset=offset, shape=shape)

    def _check_length(self, rows: int) -> None:
        if not self.path.is_file() or self.path.stat().st_size < 8 * self.landmarks * rows:
            raise self.gone("kernel rows", "they are made again")


@dataclass
class HospitalKernel:
    """The kernel of a hospital's announced rows.

    Attributes
    ----------
    kept : RunState
        The hospital's state: progress of the kernel, normal equations so far.
    rows : KernelRows
        Rows of the kernel for later steps.
    y : ndarray, shape (n, k)
        Targets of the table's rows.
    landmarks : callable or None
        Returns the landmarks of the hospital's own block, if any.
    distances : callable
        (announced rows, landmarks) -> distances, shape (rows, m).
    """

    kept: RunState
    rows: KernelRows
    y: Floats
    landmarks: Callable[[], Floats] | None
    distances: Callable[[NDArray[Any], Floats], Floats]

    def take(self, delivered: Mapping[str, NDArray[Any]]) -> None:
        kept = self.kept
        for name, total in delivered.items():
            of, _, start = name.partition("#")
            if of != kept.settings.get("of") or int(start) != kept.done:  # another or repeated sum
                continue
            try:
                found = CIRCLE.decode(total, 1) if kept.fourier else total
                self._absorb(found.reshape(-1, kept.summed))
            except StateError:  # the rows before are gone: the next step requests all rows
                kept.settings["done"] = -1
        while kept.settings.get("alone") and kept.done < kept.total:
            part = next(row_chunks(kept.total - kept.done, kept.landmarks))
            self._absorb(np.zeros((part.stop, kept.summed)))

    def _absorb(self, totals: Floats) -> None:
        kept = self.kept
        start, stop = kept.done, kept.done + len(totals)
        if self.landmarks is not None:
            rows, landmarks = kept.arrays["rows"][start:stop], self.landmarks()
            for part in row_chunks(len(rows), 32 * kept.landmarks):  # 1 MB: no array of full size
                totals[part] += self.distances(rows[part], landmarks)
        kernel = totals
        if kept.fourier:
            kernel = fourier_features(totals)
        elif not kept.tunes:
            kernel = kernel_from_distances(totals, kept.arrays["gammas"])
        trained = max(0, min(kept.train, stop) - start)
        if kept.settings["keep_training"] or kept.tunes:
            self.rows.write(start, kernel)
        else:
            self._add_equations(kernel[:trained])
            if trained < len(kernel):
                self.rows.write(start + trained, kernel[trained:], first=kept.train)
        kept.settings["done"] = stop

    def _add_equations(self, kernel: Floats) -> None:
        """Add rows in table order: the announced order differs between runs."""
        arrays = self.kept.arrays
        part = slice(self.kept.done, self.kept.done + len(kernel))
        order = np.argsort(arrays["order"][arrays["rows"][part]])
        kernel, y = kernel[order], self.targets()[part][order]
        for name, found in (("gram", kernel.T @ kernel), ("right", kernel.T @ y)):
            arrays[name] = found + arrays[name] if name in arrays else found

    def _read(self, start: int, stop: int) -> Floats:
        """Return kept rows; a hospital with its own kernel makes lost ones again.

        Raises
        ------
        StateError
            They are gone, and other parties contributed.
        """
        kept = self.kept
        try:
            return self.rows.read(start, stop)
        except StateError:
            if not kept.settings.get("alone"):
                raise
        kept.begin_kernel()
        self.take({})
        return self.rows.read(start, stop)

    def targets(self) -> Floats:
        """Return the training targets, (train, k), in the kernel's order."""
        rows = self.kept.arrays["rows"][: self.kept.train]
        return np.asarray(self.y[self.kept.arrays["order"][rows]])

    def products(self, directions: Floats, *, labels: bool) -> Floats:
        """Return K^T (K P), flat; with ``labels`` K^T y before it."""
        train, y = self.kept.train, self.targets()
        kernel, out = self._read(0, train), np.zeros(directions.shape)
        right = np.zeros((len(out), y.shape[1] if labels else 0))
        for part in row_chunks(train, len(out)):
            k = np.asarray(kernel[part])
            out += k.T @ (k @ directions)
            if labels:
                right += k.T @ y[part]
        return np.concatenate([right.ravel(), out.ravel()])

    def tuning_sums(
        self,
        gammas: Floats,
        fold: NDArray[np.intp],
        folds: int,
        weights: Floats | None = None,
    ) -> Floats:
        """Return the normal equations of each width and fold, as one vector.

        ``gammas`` has shape (w, 1) or (w, m); ``fold`` has each training row's fold, in the
        kernel's order; ``weights`` multiply squared errors.
        """
        kept, y = self.kept, self.targets()
        distances = self._read(0, kept.train)
        order = np.argsort(kept.arrays["order"][kept.arrays["rows"][: kept.train]])
        sums = Equations.zeros(kept.landmarks, self.y.shape[1], folds, len(gammas))
        for part in row_chunks(len(order), kept.landmarks):
            for f in range(folds):
                rows = order[part][fold[order[part]] == f]
                own = None if weights is None else weights[rows]
                sums.add(f, np.asarray(distances[rows]), y[rows], gammas, own)
        return sums.pack()

    def predict(self, coefficients: Floats, gammas: Floats) -> Floats:
        """Return the outputs of the held-out rows; ``gammas`` is a chosen width."""
        rows = self._read(self.kept.train, self.kept.total)
        if self.kept.tunes:
            rows = kernel_from_distances(np.array(rows), gammas)
        return np.asarray(rows @ coefficients)
