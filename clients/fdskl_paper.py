"""A party's part in the paper's sums over two trees, masked by real numbers (Algorithm 3).

Kept as the paper's mode and as the target of the attacks. A party passes on its part of omega^T x
with a number b in [0, 2 pi) added that is the same for all rows, in tree T1, and b itself in T2:
whoever gets the first can bound omega^T x, or tell it exactly for the difference of two rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.envelope import seal_message, unseal_message
from fedkern_flwr.vertical import messages as wire

from .fdskl_columns import ColumnsClient

Floats = NDArray[np.float64]
_T1, _T2 = 0, 1


def make_hops(client: ColumnsClient, request: wire.HopsRequest) -> wire.HopsReply:
    """Add this party's parts to what its children sent; seal them for its parents, or keep them.

    Raises
    ------
    ProtocolError
        What a child sealed was changed, or has another size.
    """
    if request.owners.tolist() != [request.receiver]:
        raise client.wrong("a tree has one receiver")
    known, upto = request.known[0], int(request.upto[0])
    first = int(known.min(initial=upto))
    omega, offsets = client.directions(request.receiver, first, upto)
    root = client.partition == request.receiver
    received = [part.tobytes() for part in request.received]
    children = (request.firsts.tolist(), request.seconds.tolist())
    if len(received) != sum(map(len, children)):
        raise client.wrong("what its children sent is missing")
    sums: list[Floats | None] = [None, None]
    for tree in (_T1, _T2):
        if not root and request.parents[tree] < 0:
            continue
        if tree == _T1:
            x = client.features_at(request.rows)
            here = x @ omega.T + offsets
            own = here[np.arange(first, upto) >= known[:, None]]
        else:
            own = np.zeros_like(offsets) if client.partition == request.kept else offsets.copy()
        for child in children[tree]:
            place = _place(request, tree, child, client.partition)
            text = unseal_message(client.pair_secret(child), received.pop(0), *place)
            own = own + _read(text, len(own), f"partition {child}")
        sums[tree] = own
    if root:
        _keep(client, request, sums, first)
        return wire.HopsReply(sealed=())
    sealed = []
    for tree, total in enumerate(sums):
        text = b""
        if total is not None:
            parent = int(request.parents[tree])
            place = _place(request, tree, client.partition, parent)
            plain = np.ascontiguousarray(total, "<f8").tobytes()
            text = seal_message(client.pair_secret(parent), plain, *place)
        sealed.append(np.frombuffer(text, np.uint8))
    return wire.HopsReply(sealed=tuple(sealed))


def _keep(
    client: ColumnsClient,
    request: wire.HopsRequest,
    sums: list[Floats | None],
    first: int,
) -> None:
    """Take T2's sum from T1's, which leaves omega^T x + b, and keep its phase."""
    settings = client.kept.settings
    if settings.get("taken", 0) >= request.collection:
        return
    masked, masks = sums
    assert masked is not None
    assert masks is not None
    client.note_pending(request)
    known, upto = request.known[0], int(request.upto[0])
    wide = np.broadcast_to(masks, (len(known), upto - first))
    lacking = np.arange(first, upto) >= known[:, None]
    circle = Encoding.circle(int(settings["phase_bits"]))
    phases = circle.encode(masked - wide[lacking], 1, name="phases")
    client.store().take(request.rows, known, upto, phases)
    client.note_taken()


def _place(
    request: wire.HopsRequest, tree: int, sender: int, receiver: int
) -> tuple[str | int, ...]:
    return ("hops", request.session, request.collection, tree, sender, receiver)


def _read(text: bytes, length: int, party: str) -> Floats:
    found = np.frombuffer(text, "<f8")
    if len(found) != length or not np.isfinite(found).all():
        raise ProtocolError("what it sent has the wrong size or is not finite", party=party)
    return found
