"""Encode any table as numbers: each column is fitted on training rows, and the fit is kept.

An :class:`Encoder` has a fitted column for each column of a table, made of *facts* of the rows:
quantiles, mean, deviation, range, counts of categories and gaps. Like the rows it stays with their
owner. Names of outputs and explanations contain no category and no value.
"""

from .encoder import Encoder, Explanation

__all__ = ["Encoder", "Explanation"]
