"""Any table as numbers: what each column becomes is fitted on rows to learn from, and kept.

An :class:`Encoder` has one fitted column for each of a table, made of *facts* of the rows: values
at equal ranks, mean and deviation, least and greatest value, counts of categories, how many are
missing. It is of one owner's rows and stays with the owner, as the rows do. Names of outputs and
explanations have counts and names of columns, no category and no value.
"""

from .encoder import Encoder, Explanation

__all__ = ["Encoder", "Explanation"]
