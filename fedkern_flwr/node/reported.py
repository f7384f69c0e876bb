"""What goes wrong while a node is built is told to the server, as far as that may be told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context

from ..errors import ColumnError, FedKernError, TableError
from ..failure import mark_error
from .failures import conceal

logger = logging.getLogger("fedkern_flwr")

_LISTED = "that node's log lists the columns that it has"


@contextmanager
def reported(context: Context) -> Iterator[None]:
    """Raise what goes wrong in the block as an error whose text the server may show.

    Raises
    ------
    FedKernError
    """
    try:
        yield
        return
    except FedKernError as error:
        who = f"partition {context.node_config.get('partition-id', '?')}"
        logger.error("%s", _from(who, error))
        if isinstance(error, ColumnError):
            error = TableError(error.problem, remedy=_LISTED, party=error.party, code=error.code)
        error.args = (mark_error(f"{type(error).__name__}: {_from(who, error)}"),)
        raise error from None
    except Exception as error:
        concealed = conceal(error)
    raise concealed from None


def _from(who: str, error: FedKernError) -> str:
    named = who in error.party or str(error).startswith(who)
    return str(error) if named else f"{who}: {error}"
