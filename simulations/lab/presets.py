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

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from fedkern_flwr.errors import OptionError, TableError

from ..methods.base import Family
from ..methods.registry import METHODS, family, family_with, method
from ..run.data import Settings
from ..run.datasets import spelled
from ..run.options import options
from .columns import Column, columns_of

__all__ = ["NAMES", "PAPERS", "Preset", "Section", "preset"]

# -- sections of a preset, and its files

DATA_FOLDER = "FEDKERN_DATA"

#: (label, method, options)
Contender = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """Methods compared on the same data.

    Attributes
    ----------
    data : dict
        Data set -> settings of the section's family; names are unique in a preset.
    entries : tuple of (label, method, options)
        Strategies and reference methods.
    columns, figures, across : tuple of str
        Columns of the table, plots, and plots over all data sets.
    dealt : dict
        Data set -> label -> other settings of an entry. With the same seed and share all families
        hold out the same rows.
    parties : str
        The parties, where the settings do not describe them.
    title, text : str
        Headline and explanation.
    paper : dict
        Figures of the paper: data set -> column -> label -> value in the column's unit.
    sweep : str
        Option on the x axis of sweeps.
    ranks : tuple of tuple of str
        Labels from the paper's best to its worst, for paired differences.
    """

    data: Mapping[str, Settings]
    entries: tuple[Contender, ...]
    columns: tuple[str, ...]
    figures: tuple[str, ...]
    title: str = ""
    text: str = ""
    paper: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    sweep: str = ""
    across: tuple[str, ...] = ()
    ranks: tuple[tuple[str, ...], ...] = ()
    dealt: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    parties: str = ""

    @property
    def family(self) -> Family[Any, Any, Any]:
        """The family of the data."""
        return family_with(next(iter(self.data.values())))

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return columns_of(self.family)[name]

    @property
    def check_pooled(self) -> bool:
        """Whether a column shows the difference to the pooled model."""
        return any(self.column(name).pooled for name in self.columns)

    def caption(self, dataset: str) -> str:
        """Return data set and parties, for the caption of a table."""
        return f"{dataset}: {self.parties or self.data[dataset].describe()}"

    def size(self, facts: Mapping[str, Any]) -> str:
        """Return the size of the data, from :meth:`Prepared.facts`."""
        if not self.parties:
            return self.family.size(facts)
        train, held = (int(np.sum(facts[name])) for name in ("rows", "held_out_rows"))
        return f"{self.parties}, {train} training and {held} held-out rows"

    def settings(self, dataset: str, label: str) -> Settings:
        """Return the settings of an entry."""
        return self.dealt.get(dataset, {}).get(label, self.data[dataset])


@dataclass(frozen=True)
class Preset:
    """A comparison with a name.

    Attributes
    ----------
    name, title, text : str
        Name on the command line, headline and explanation in the report.
    sections : tuple of Section
    runs : int
        Repetitions per entry.
    """

    name: str
    title: str
    text: str
    sections: tuple[Section, ...]
    runs: int = 20

    @property
    def data(self) -> dict[str, Settings]:
        """Settings of the data sets of all sections."""
        return {name: own for section in self.sections for name, own in section.data.items()}

    @property
    def entries(self) -> tuple[Contender, ...]:
        """Entries of all sections."""
        return tuple(entry for section in self.sections for entry in section.entries)


# -- the data


class DataFiles:
    """Find data in the folder ``$FEDKERN_DATA``, or in given files.

    Parameters
    ----------
    given : mapping
        Data set -> file.

    Raises
    ------
    TableError
        There is no such file.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        for name, text in given.items():
            if not Path(text).is_file():
                raise TableError(
                    f"{text} is not a file", remedy=f"name the file of {name}", code="FK-FILE-READ"
                )
        self._given = {spelled(name): Path(text).resolve() for name, text in given.items()}
        self.unread = set(self._given)

    def is_there(self, name: str, values: Mapping[str, Any]) -> bool:
        """Return whether an optional data set is available."""
        try:
            return bool(self._path(name, values))
        except TableError:
            return not values.get("optional")

    def find(self, name: str, values: Mapping[str, Any]) -> str:
        """Return built-in data by its name, other data by its path.

        Raises
        ------
        TableError
            The folder is not named, or does not hold it.
        """
        found = self._path(name, values)
        self.unread.discard(spelled(name) * ("." in found))
        return found

    def _path(self, name: str, values: Mapping[str, Any]) -> str:
        known = values["data"] if isinstance(values["data"], list) else [values["data"]]
        if "." not in known[0]:
            return str(known[0])
        if spelled(name) in self._given:
            return str(self._given[spelled(name)])
        folder = os.environ.get(DATA_FOLDER)
        if not folder:
            raise TableError(
                f"{DATA_FOLDER} is not set",
                remedy=f"set it to the folder that holds {known[0]}",
                code="FK-DATA-FOLDER",
            )
        found = next((path for file in known if (path := Path(folder, file)).is_file()), None)
        if found is None:
            raise TableError(
                f"{' or '.join(known)} is not in the folder that {DATA_FOLDER} names",
                remedy=values.get("remedy", "put it there"),
                code="FK-DATA-MISSING",
            )
        return str(found)


def choose(
    datasets: tuple[str, ...], known: Iterable[str], usual: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the requested data sets; without a request the usual ones, or all known ones.

    Case, spaces, dashes and underscores are ignored.

    Raises
    ------
    TableError
        Unknown data set.
    """
    names = {spelled(name): name for name in known}
    datasets = tuple(names.get(spelled(name), name) for name in datasets)
    unknown = sorted(set(datasets) - set(names.values()))
    if unknown:
        raise TableError(
            f"the presets have no data set {unknown[0]!r}",
            remedy=f"choose of {', '.join(names.values())}",
            code="FK-PRESET-DATA",
        )
    return tuple(dict.fromkeys(datasets)) or tuple(usual) or tuple(names.values())


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
        from .own import eight_tables  # which makes presets of tables by this module

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
