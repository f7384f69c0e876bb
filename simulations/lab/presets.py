"""Make the presets of ``fedkern compare`` from ``papers/*.toml``.

A file has values for all of its presets, and a table ``[[preset]]`` for each, which overrides them:
``name``, ``title``, ``text``, ``runs``, and the parts of a :class:`Section`
(``section_title``, ``section_text``, ``columns``, ``plots``, ``across``, ``sweep``, ``ranks``,
``parties``). A preset has a section for each data set, or one for all (``together``). ``sections``
lists tables, or names of tables ``[section.NAME]``, with further overrides. A section that is
``unasked`` is left out where the user names data sets; a preset with ``own_data`` refuses them.

* ``[data]``: name -> settings of the ``family`` and other values; ``like`` names a table with more.
  The default file has the name of the data set. Settings of the section override. ``of`` lists the
  data sets of a preset, ``usual`` its default, ``one`` takes the first of these. ``vary`` makes a
  data set for each of some values, with the name ``label``. ``without`` removes a setting.
* ``[entry]``: label -> method and options. ``entries`` lists those of a section, by label or as
  tables. These may start from an ``id`` of ``[entry]`` and from other tables (``use``), repeat for
  each row of a table (``for``), need a value (``needs``), and have other settings of the data
  (``dealt``). ``options`` are for all methods that have them.
* ``paper``: column -> figures of the paper by label, or in the order of the entries; or a list of
  columns of ``[printed]``, by data set.

A text may have values in braces: of the file, the preset, the data set, or the current row. The
text ``{name}`` alone is the value itself. A preset with ``for`` repeats for each row.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from itertools import product
from string import Formatter
from typing import Any

from fedkern_flwr.errors import OptionError, TableError

from ..methods.registry import METHODS, family, method
from ..run.data import Settings
from ..run.datasets import spelled
from ..run.options import options
from .own import eight_tables
from .sections import Contender, DataFiles, Preset, Section, choose

__all__ = ["NAMES", "PAPERS", "Preset", "Section", "preset"]

Values = dict[str, Any]

_OF_ENTRY = ("id", "label", "use", "for", "needs", "dealt")


def fill(given: Any, values: Mapping[str, Any]) -> Any:
    """Replace names in braces by values, in texts and in containers of them."""
    if isinstance(given, Mapping):
        return {fill(key, values): fill(value, values) for key, value in given.items()}
    if isinstance(given, list):
        return [fill(value, values) for value in given]
    while isinstance(given, str) and (found := re.search(r"{([^{}]*)}", given)):  # the innermost
        name, _, form = found[1].partition(":")
        value = Formatter().get_field(name, (), values)[0]
        if found[0] == given:
            return fill(value, values)
        given = given.replace(found[0], format(fill(value, values), form))
    return given


def expand(rows: Any) -> Iterator[Values]:
    """Yield a row for each combination of listed values."""
    for row in rows if isinstance(rows, list) else [rows]:
        listed = [value if isinstance(value, list) else [value] for value in row.values()]
        yield from (dict(zip(row, chosen, strict=True)) for chosen in product(*listed))


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> Values:
    """Override values; settings and sections are merged."""
    both = {k: {**base.get(k, {}), **own.get(k, {})} for k in ("settings", "section")}
    return {**base, **own, **both}


def _read(name: str) -> Iterator[Values]:
    """Yield the values of each preset of a file."""
    text = files("fedkern_flwr.simulations.papers").joinpath(f"{name}.toml").read_text("utf-8")
    whole = tomllib.loads(text)
    for own in whole.pop("preset"):
        given = _over(whole, own)
        rows = given.pop("for", {})
        for row in expand(given[rows] if isinstance(rows, str) else rows):
            known = {**given, **row}
            yield {**known, "name": fill(known["name"], known)}


def _entries(given: Values, known: Values) -> Iterator[tuple[Contender, Values | None]]:
    """Yield the entries of a section on a data set, and their other settings."""
    for listed in given["entries"] if "entries" in given else given["entry"]:
        spec = {"id": listed} if isinstance(listed, str) else listed
        start = given["entry"][spec["id"]] if "id" in spec else {}
        wanted = {**start, **spec}.get("needs")
        if wanted and wanted not in known:
            continue
        rows = spec.get("for", {})
        for row in expand(given[rows] if isinstance(rows, str) else rows):
            here = {**known, **row, "row": row, "id": spec.get("id")}
            whole: Values = {"label": spec.get("id")}
            for part in (start, spec):
                for used in part.get("use", ()):
                    whole |= fill(used, here)
                whole |= part
            chosen = fill({k: v for k, v in whole.items() if k not in _OF_ENTRY}, here)
            name = chosen.pop("method")
            if name in METHODS:
                usual = {option.name for option in options(method(name))}
                more = given.get("options", {}).items()
                chosen = {**{k: v for k, v in more if k in usual}, **chosen}
            dealt = fill(given[whole["dealt"]], here) if "dealt" in whole else None
            yield (fill(whole["label"], here), name, chosen), dealt


def _settings(name: str, values: Mapping[str, Any]) -> Settings:
    """Make settings of a method's family from the values that are settings."""
    kind = family(name).settings
    own = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    made: Settings = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in own.items()})
    return made


def _section(given: Values, names: Sequence[str], place: DataFiles) -> Section:
    """Make a section of some data sets."""
    data, dealt, paper = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    known: Values = {}
    entries: list[Contender] = []
    varied = next(iter(given["vary"])) if isinstance(given.get("vary"), dict) else "groups"
    usual = f"{{set}}, {{{varied}}} {varied}" if "vary" in given else "{set}"
    for name in names:
        own = {**given["data"][name], "set": name}
        own["data"] = place.find(name, {**given, **own})
        for row in expand(given.get("vary", {})):
            here = {**given, **own, **row}
            values = {**own, **fill(given["settings"], here), **row}
            values.pop(given.get("without", ""), None)
            label = fill(given.get("label", usual), here)
            data[label] = _settings(given["family"], values)
            found = list(_entries(given, here))
            others = {e[0]: _settings(d["as"], {**values, **d}) for e, d in found if d}
            if others:
                dealt[label] = others
            if not entries:
                entries, known = [entry for entry, _ in found], here
            if figures := _figures(given, here, [entry[0] for entry in entries]):
                paper[label] = figures
    return Section(
        data=data,
        entries=tuple(entries),
        columns=tuple(fill(given["columns"], known)),
        figures=tuple(given.get("plots", ())),
        title=fill(given.get("section_title", ""), known),
        text=given.get("section_text", ""),
        paper=paper,
        sweep=given.get("sweep", ""),
        across=tuple(given.get("across", ())),
        ranks=tuple(map(tuple, given.get("ranks", ()))),
        dealt=dealt,
        parties=given.get("parties", ""),
    )


def _figures(given: Values, here: Values, labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the paper's figures for a data set: column -> label -> figure.

    Listed columns are tables of the file; the last of its labels have figures.
    """
    said = given.get("paper", {})
    if isinstance(said, list):
        printed, found = given["printed"], dict[str, dict[str, float]]()
        for column in said:
            row = printed[column][here["set"]]
            found[column] = dict(zip(printed["labels"][-len(row) :], row, strict=True))
        return found
    filled = fill(said, here)
    return {
        column: dict(zip(labels, row, strict=False)) if isinstance(row, list) else row
        for column, row in filled.items()
    }


def _sections(given: Values, asked: tuple[str, ...], place: DataFiles) -> Iterator[Section]:
    """Make the sections of a preset, of the requested data sets."""
    for listed in given.get("sections", [{}]):
        own = _over(given, given["section"][listed] if isinstance(listed, str) else listed)
        if asked and own.get("unasked"):
            continue
        sets = {
            name: {"data": f"{spelled(name)}.npz", **own.get(said.get("like", ""), {}), **said}
            for name, said in own["data"].items()
        }
        own["data"] = sets
        known = own.get("of", list(sets))
        known = [known] if isinstance(known, str) else known
        usual = [n for n in own.get("usual", known) if place.is_there(n, sets[n])]
        kept = choose(asked, known, usual)
        kept = kept[:1] if own.get("one") else kept
        for names in [kept] if own.get("together") else [(name,) for name in kept]:
            yield _section(own, names, place)


_PAPERS = ("pof_mkl", "fed_cg", "fdskl", "fed_cfk", "hierarchical_svm")
_MADE = {
    (said["name"], said.get("paper_split", False)): said
    for file in ("demo", "cross", *_PAPERS)
    for said in _read(file)
}
PAPERS = tuple(dict.fromkeys(n for n, _ in _MADE if not n.startswith(("demo", "cross-"))))
#: ``peers`` is made by :mod:`.own`.
NAMES = ("demo", "demo-quick", "cross-vertical", "cross-hybrid", "peers", *PAPERS)


def preset(
    name: str,
    datasets: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
    *,
    paper_split: bool = False,
) -> Preset:
    """Return a preset.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    datasets : tuple of str
        Data sets of the paper to keep; all when empty.
    files : mapping, optional
        Data set -> file, instead of that in the folder FEDKERN_DATA.
    paper_split : bool
        Hold out the rows that the paper's programs hold out.

    Raises
    ------
    TableError
        Unknown preset or data set, or missing data.
    OptionError
        The paper's split is not known.
    """
    if name not in NAMES:
        raise TableError(
            f"there is no preset {name!r}",
            remedy=f"choose of {', '.join(NAMES)}",
            code="FK-OPTION-CHOICE",
        )
    if paper_split and (name, True) not in _MADE:
        raise OptionError(f"the paper's split of {name} is not known", code="FK-PRESET-SPLIT")
    place = DataFiles(files or {})
    if name == "peers":
        made = eight_tables(datasets, place)
    else:
        given = _MADE[name, paper_split]
        if datasets and given.get("own_data"):
            raise TableError(f"{name} has its own data", code="FK-COMPARE-OPTION")
        sections = tuple(_sections(given, datasets, place))
        title, text = fill([given["title"], given["text"]], given)
        made = Preset(name, title, text, sections, given.get("runs", 20))
    if place.unread:
        raise TableError(
            f"the preset reads no file of {min(place.unread)}",
            remedy="name a data set of the preset",
            code="FK-PRESET-DATA",
        )
    return made
