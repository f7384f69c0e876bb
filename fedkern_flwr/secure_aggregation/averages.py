"""Sum weighted means of records: the messages, and the vector of a reply.

Flower's strategies average arrays and metrics of replies, weighted by one of the metrics. The
vector of a reply is its weight w, then w times its metrics in ``SLOTS`` numbers, then w times its
arrays. The mean is the sum of these vectors divided by its first number.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from ..errors import OptionError, ProtocolError
from ..plain_text import read_json
from ..secure_sum.encoding import Encoding
from ..wire.message import Message

# -- messages: a request is added to what a strategy sends to the app, which never sees it


class AverageRequest(Message, phase="average"):
    """Request to train, and to add the weighted result to the sum of this exchange.

    Attributes
    ----------
    round : int
        Number of the exchange, from 1.
    weighted_by : str
        Metric that is the weight.
    """

    session: str
    round: int
    weighted_by: str


class AverageReply(Message, phase="average"):
    """Reply to a request; the masked vector is in a section.

    ``layout`` has the names and lengths of the metrics as JSON; empty for a node that contributes
    zeros.
    """

    long_texts = ("layout",)

    round: int
    layout: str


class FiguresRequest(AverageRequest, phase="average-evaluate"):
    """Request to evaluate, and to add the weighted metrics to the sum of this exchange."""


class FiguresReply(AverageReply, phase="average-evaluate"):
    """Reply to a request; the masked figures are in a section."""


# -- the vector of a reply

#: Numbers that the metrics of a reply may have, the weight not counted.
SLOTS = 32
#: Default of the largest absolute value of an array or metric.
BOUND = 1024.0
#: Flower's default name of the weight.
WEIGHT = "num-examples"
TRAIN_SUM, FIGURES_SUM = "average", "evaluate/"
_LONGEST = 400  # characters of a layout

Layout = list[tuple[str, int]]  # name, how many numbers; 0 for one that is no list
Record = TypeVar("Record", ArrayRecord, MetricRecord)


def sum_name(content: RecordDict, evaluation: int = 0) -> str:
    """Return the name of a sum to which nodes contribute only if all got the same content.

    Masks depend on the name. A server that sends the model to one node, and to the others something
    that makes their part of the sum known, cannot open the sum. A number ``evaluation`` above 0
    names the exchange of an evaluation, so that each is opened once.
    """
    digest = hashlib.sha256()
    for name, record in sorted(content.items()):
        for key, value in sorted(record.items()):
            digest.update(repr((name, key)).encode())
            if isinstance(value, Array):
                digest.update(repr((value.dtype, tuple(value.shape), value.stype)).encode())
                digest.update(hashlib.sha256(value.data).digest())
            else:
                digest.update(repr(value).encode())
    name = f"{FIGURES_SUM}{evaluation}" if evaluation else TRAIN_SUM
    return f"{name}#{digest.hexdigest()[:32]}"


def encoding(bound: float, examples: int) -> Encoding:
    """Return the encoding of a sum with numbers up to ``bound``.

    ``examples`` are those of the largest party: no weight may be larger.
    """
    return Encoding.fixed_point(max(1.0, bound) * max(1, examples))


def check_bound(bound: float) -> None:
    if not 0.0 < bound < math.inf:
        raise OptionError(
            f"bound is {bound}", remedy="use a positive number", code="FK-OPTION-RANGE"
        )


def sent_arrays(content: RecordDict) -> ArrayRecord:
    """Return the arrays of a request to an app; an empty record for none."""
    records = content.array_records
    return _only(dict(records), "ArrayRecord", ArrayRecord) if records else ArrayRecord()


def vector_length(arrays: ArrayRecord) -> int:
    return 1 + SLOTS + sum(math.prod(array.shape) for array in arrays.values())


def pack(
    content: RecordDict, arrays: ArrayRecord, weight: str, examples: int
) -> tuple[NDArray[np.float64], str]:
    """Return the vector of a reply and the layout of its metrics.

    ``arrays`` is what the app was sent: the reply must have the same names and shapes; empty for
    metrics only. ``weight`` names the metric that is the weight, at most ``examples``.

    Raises
    ------
    ProtocolError
        The reply does not fit. The text quotes no value of it.
    """
    metrics = _only(dict(content.metric_records), "MetricRecord", MetricRecord)
    if weight not in metrics or isinstance(metrics[weight], list):
        raise ProtocolError(
            f"its app returns no number {weight!r} in its MetricRecord",
            remedy="return the weight of the mean under that name, or set weighted_by",
            code="FK-APP-WEIGHT",
        )
    own = float(metrics[weight])  # type: ignore[arg-type]
    if not 0.0 <= own <= examples:
        raise ProtocolError(
            "the weight that its app returns is not from 0 to the examples of the node with most",
            remedy="weight by the number of examples, or by less",
            code="FK-APP-WEIGHT-RANGE",
        )
    out = np.zeros(vector_length(arrays))
    out[0] = own
    layout: Layout = []
    start = 1
    for name in sorted(metrics):
        if name == weight:
            continue
        value = metrics[name]
        numbers = list(value) if isinstance(value, list) else [value]
        if start + len(numbers) > 1 + SLOTS:
            raise ProtocolError(
                f"the metrics of its app have more than {SLOTS} numbers", code="FK-APP-METRICS-MANY"
            )
        out[start : start + len(numbers)] = numbers
        layout.append((name, len(numbers) if isinstance(value, list) else 0))
        start += len(numbers)
    if arrays:
        out[1 + SLOTS :] = returned_arrays(content, arrays)
    out[1:] *= own
    text = json.dumps(layout)
    if len(text) > _LONGEST:
        raise ProtocolError(
            f"the names of its metrics have more than {_LONGEST} characters",
            code="FK-APP-METRICS-MANY",
        )
    return out, text


def unpack(
    total: NDArray[np.float64], arrays: ArrayRecord, layout: str, weight: str
) -> tuple[ArrayRecord, MetricRecord]:
    """Return the means of arrays and metrics, with the total weight among the metrics.

    Arrays keep the precision of the sent ones (``arrays``), but integers become float64, as in
    Flower's averages. ``total`` is the sum of vectors, with a positive weight.
    """
    means = total[1:] / total[0]
    values: dict[str, Any] = {weight: float(total[0])}
    start = 0
    for name, count in read_layout(layout):
        part = means[start : start + max(1, count)].tolist()
        values[name] = part if count else part[0]
        start += len(part)
    start, out = SLOTS, {}
    for name, sent in arrays.items():
        dtype = np.dtype(sent.dtype)
        size = math.prod(sent.shape)
        mean = means[start : start + size].reshape(sent.shape)
        out[name] = Array(mean.astype(dtype if dtype.kind == "f" else np.float64))
        start += size
    return ArrayRecord(out), MetricRecord(values)


def read_layout(text: str) -> Layout:
    """Read the names of metrics and their lengths; ProtocolError if malformed."""
    try:
        found = [(name, count) for name, count in read_json(text)] if text else []
    except (ValueError, TypeError, RecursionError):
        found = [("", -1)]
    for name, count in found:
        if type(name) is not str or type(count) is not int or not 0 <= count <= SLOTS:
            raise ProtocolError("the layout of its metrics is damaged", code="FK-MESSAGE-FIELD")
    if sum(max(1, count) for _, count in found) > SLOTS or len(dict(found)) < len(found):
        raise ProtocolError("the layout of its metrics is damaged", code="FK-MESSAGE-FIELD")
    return found


def returned_arrays(content: RecordDict, expected: ArrayRecord) -> NDArray[np.float64]:
    """Return the numbers of an app's arrays; ProtocolError unless names and shapes are as sent."""
    found = _only(dict(content.array_records), "ArrayRecord", ArrayRecord)
    out = np.zeros(vector_length(expected) - 1 - SLOTS)
    fits = found.keys() == expected.keys()
    start = 0
    for name, sent in expected.items() if fits else ():
        array = found[name]
        fits = fits and tuple(array.shape) == tuple(sent.shape)
        if not fits or np.dtype(array.dtype).kind not in "fiub":
            fits = False
            break
        size = math.prod(sent.shape)
        out[start : start + size] = array.numpy().ravel()
        start += size
    if not fits:
        raise ProtocolError(
            "its app returns other arrays than it was sent",
            remedy="return all arrays of the model, under the same names and of the same shapes",
            code="FK-APP-ARRAYS",
        )
    return out


def _only(records: Mapping[str, Record], kind: str, cls: type[Record]) -> Record:
    if len(records) != 1:
        raise ProtocolError(
            f"there are {len(records)} records {kind} in place of one", code="FK-APP-RECORDS"
        )
    return next(iter(records.values()))
