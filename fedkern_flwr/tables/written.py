"""Numbers as people write them: with a unit, marks of thousands, a bracket, or a limit."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError
from .table import TYPING_ERRORS, nothing, texts

# Units of one kind, that a column must not mix. Small and capital letters are alike.
_KINDS = {
    "money": "€=eur $=usd £=gbp ¥=jpy ₹=inr cny chf sek nok dkk pln=zł czk huf aud cad kr",
    "share": "%=percent ‰ ppm ppb",
    "mass": "ng µg=ug=mcg mg g kg t lb=lbs oz st",
    "length": "nm µm=um mm cm dm m km in=inch=inches ft=feet mi=mile=miles",
    "time": "ms s=sec=secs min=mins h=hr=hrs=hour=hours d=day=days wk=week=weeks mo=month=months "
    "y=yr=yrs=year=years",
    "volume": "fl nl µl=ul ml cl dl l",
    "amount": "fmol pmol nmol µmol=umol mmol mol",
    "temperature": "°c=℃ °f=℉",
    "pressure": "mmhg cmh2o pa hpa kpa mpa bar mbar psi atm",
    "activity": "iu u mu miu kiu ku kat µkat nkat meq eq mosm osm",
    "energy": "j kj mj cal kcal wh kwh",
    "power": "w kw mw hp",
    "frequency": "hz khz mhz ghz bpm rpm",
    "electric": "v mv kv a ma µa",
    "radiation": "gy mgy sv msv µsv bq kbq mbq gbq",
    "sound": "db",
    "angle": "°=deg",
}
_KIND_OF = {
    same: kind for kind, units in _KINDS.items() for one in units.split() for same in one.split("=")
}
_SAME = {  # how else a unit is written -> as it is first above
    same: one.split("=")[0]
    for units in _KINDS.values()
    for one in units.split()
    for same in one.split("=")
}


def _among(units: str) -> str:
    """Return a pattern of units, the longest first; the Greek mu is the sign of micro."""
    found = sorted(re.split("[ =]", units), key=len, reverse=True)
    return "|".join(map(re.escape, found)).replace("µ", "[µμ]")


_MONEY = _among(_KINDS["money"])
_PLAIN = f"(?:{_among(' '.join(_KINDS.values()))})(?:[²³]|\\^?-?[1-4])?"
# such as mg/dL, kg/m², /µL, 10^9/L, mL/min/1.73m2
_UNIT = (
    f"(?:[x×*] ?)?10(?:\\^|\\*\\*?|e)?[0-9⁰¹²³⁴-⁹]{{1,2}}/{_PLAIN}"
    f"|(?:{_PLAIN}|cells?)?(?:(?:/| per )(?:1[.,]73 ?)?{_PLAIN}){{1,2}}|{_PLAIN}"
)
_SPACES = "[ \u00a0\u2007\u2009\u202f]"
_DIGITS = f"\\d{{1,3}}(?:(?:{_SPACES}|['’])\\d{{3}})+(?:[.,]\\d+)?|\\d+(?:[.,]\\d+)*[.,]?|[.,]\\d+"
_WRITTEN = (
    "(?i)^(?P<limit>[<>≤≥]=?)?"
    f"{_SPACES}*(?P<open>\\()?(?P<sign>[+\u2212-])?{_SPACES}*(?P<before>{_MONEY})?{_SPACES}*"
    f"(?P<minus>[\u2212-])?(?P<number>(?:{_DIGITS})(?:e[+-]?\\d+)?)"
    f"{_SPACES}*(?P<after>{_UNIT})?{_SPACES}*(?P<close>\\))?$"
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_POWER = re.compile(r"(?:[x×*] ?)?10(?:\^|\*\*?|e)?(\d{1,2})/")
_ODD = r"[^0-9.,eE+-]|[.,].*[.,]"  # what no plain number has
_GROUPS = (  # marks of thousands, where it is certain that they are
    (r"^(\d{1,3}(?:[ \x{a0}\x{2007}\x{2009}\x{202f}'’]\d{3})+)", _SPACES[:-1] + "'’]", ""),
    (r"^\d{1,3}(,\d{3})+\.\d+$|^\d{1,3}(,\d{3}){2,}$", ",", ""),
    (r"^\d{1,3}(\.\d{3})+,\d+$|^\d{1,3}(\.\d{3}){2,}$", r"\.", ""),
)


class Written(NamedTuple):
    """A column of numbers as people write them.

    Attributes
    ----------
    cells : pyarrow.Array
        The numbers as plain text; a cell beyond a limit is missing.
    unit : str
        Of all of them; empty where they have none.
    limits : int
        Cells that say a limit, such as <0.5.
    """

    cells: Any
    unit: str = ""
    limits: int = 0


def read_written(cells: Any, name: str, source: str) -> Written | None:
    """Return the numbers of a column of text, None if it holds something else or plain numbers.

    Parameters
    ----------
    cells : pyarrow.ChunkedArray
        The column, see :func:`~.table.plain_cells`.
    name, source : str
        Names of column and file, for errors.

    Raises
    ------
    TableError
        It has numbers in several units of one kind, or some with and some without one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(cells.type):
        return None
    if not pc.any(pc.match_substring_regex(cells, _ODD)).as_py():
        return None
    coded = cells.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if hasattr(coded, "chunks") else coded
    found = pc.extract_regex(coded.dictionary, _WRITTEN)
    known = found.is_valid().to_numpy(zero_copy_only=False)
    codes = coded.indices.to_numpy(zero_copy_only=False)
    codes = codes[np.isfinite(codes)].astype(np.intp)
    times = np.bincount(codes, minlength=len(known))
    strange = int(times[~known].sum())
    if not known.any() or strange * TYPING_ERRORS > times.sum():
        return None
    part = {key: _text(found, key) for key in ("limit", "before", "after", "open", "close")}
    written = np.where(part["before"] != "", part["before"], part["after"])
    spelled, places = np.unique(np.where(known, written, ""), return_inverse=True)
    units = np.array([_spelled(one) for one in spelled.tolist()])[places]
    if (known & ((part["open"] != "") != (part["close"] != ""))).any():
        return None  # a bracket that is not closed
    if (known & (part["before"] != "") & (part["after"] != "")).any():
        return None
    unit = _one_unit(units, known & ~_zero(found), times, name, source)
    if unit is None:
        return None
    plain = _plain(found, part["open"] != "")
    limited = known & (part["limit"] != "")
    plain = pc.if_else(pa.array(limited), nothing(), plain)
    plain = pc.if_else(pa.array(known), plain, coded.dictionary)  # typing errors stay what they are
    taken = plain.take(coded.indices)
    return Written(pa.chunked_array([taken]), unit, int(times[limited].sum()))


def _text(found: Any, key: str) -> NDArray[np.str_]:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(found.field(key), "").to_pylist(), dtype=np.str_)


def _zero(found: Any) -> NDArray[np.bool_]:
    """Return which numbers are 0, which needs no unit."""
    import pyarrow.compute as pc

    return np.asarray(
        pc.fill_null(pc.match_substring_regex(found.field("number"), "^[0.,]+$"), False)
    )


def _one_unit(
    units: NDArray[np.str_],
    known: NDArray[np.bool_],
    times: NDArray[np.int64],
    name: str,
    source: str,
) -> str | None:
    """Return the unit of a column, None where it is text; refuse several of one kind."""
    found, places = np.unique(units[known], return_inverse=True)
    if len(found) < 2:
        return str(found[0]) if len(found) else ""
    counts = np.bincount(places, times[known])
    named = found[found != ""]
    kinds = {_kind(one) for one in named.tolist()}
    without = counts[found == ""].sum()
    if len(kinds) > 1 or 2 * without > counts.sum():
        return None
    most = np.argsort(-counts, kind="stable")[:2]
    texts_ = [f"{int(counts[k])} in {found[k] or 'no unit'}" for k in most]
    raise TableError(
        f"column {name!r} of {source} has numbers in several units: {' and '.join(texts_)}",
        remedy="bring them to one unit, written in all cells or in none",
        code="FK-UNITS-DIFFER",
    )


def _spelled(unit: str) -> str:
    """Return a unit in one spelling: in small letters but for the litre, as each part is first."""
    text = unit.replace("μ", "µ").lower().translate(_RAISED)
    text = _POWER.sub(r"10^\1/", text) if _POWER.match(text) else text.replace("^", "")
    parts = re.split("(/| per )", text)
    text = "".join("/" if one == " per " else _SAME.get(one, one) for one in parts)
    return re.sub(r"(?<![a-z])([µmdncf]?)l(?![a-z])", r"\1L", text)


def _kind(unit: str) -> str:
    return "rate" if "/" in unit else _KIND_OF.get(unit.lower().rstrip("1234-"), unit)


def _plain(found: Any, negative: NDArray[np.bool_]) -> Any:
    """Return numbers as plain text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.utf8_rtrim(found.field("number"), ".,")
    for where, what, new in _GROUPS:
        grouped = pc.match_substring_regex(numbers, where)
        numbers = pc.if_else(grouped, pc.replace_substring_regex(numbers, what, new), numbers)
    minus = pc.or_(
        *(
            pc.is_in(pc.fill_null(found.field(k), ""), value_set=texts(["-", "\u2212"]))
            for k in ("sign", "minus")
        )
    )
    minus = pc.xor(minus, pa.array(negative))
    return pc.if_else(minus, pc.binary_join_element_wise("-", numbers, ""), numbers)
