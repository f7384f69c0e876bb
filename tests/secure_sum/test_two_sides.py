"""What bounds numbers of a sum, and a total, bounds them on both sides."""

from contextlib import nullcontext

import numpy as np
import pytest
from refusals import refused

from fedkern_flwr.secure_sum import Encoding


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("encoding", [Encoding.integers(9), Encoding.fixed_point(9.0)])
def test_a_number_or_a_total_beyond_its_bound_is_refused(encoding: Encoding, sign: int) -> None:
    for value, fits in ((9, True), (10, False)):
        values = np.array([0, sign * value])
        with nullcontext() if fits else refused("FK-SUM-BOUND"):
            encoding.encode(values, 3, name="x")
        with nullcontext() if fits else refused("FK-SUM-TOTAL"):
            encoding.check_total(3 * values, 3, name="x")
