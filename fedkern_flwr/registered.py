"""Find methods by entry point, including those of other packages.

A package registers a method in its ``pyproject.toml``::

    [project.entry-points."fedkern.methods"]
    my-method = "my_package:MyMethod"
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from .errors import OptionError
from .method import Method, MethodClient

GROUP = "fedkern.methods"


@cache
def registered() -> dict[str, EntryPoint]:
    """Return name -> entry point."""
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


@cache
def find_method(name: str) -> type[Method]:
    """Return a registered method; OptionError if it is missing or cannot be used."""
    if name not in registered():
        raise OptionError(
            f"there is no method {name!r}",
            remedy="install the package that registers it",
            code="FK-METHOD-UNKNOWN",
        )
    point = registered()[name]
    try:
        found = point.load()
    except Exception as error:
        raise OptionError(
            f"method {name} cannot be loaded from {point.value} ({type(error).__name__}: {error})",
            remedy="mend or remove the package that registers it",
            code="FK-METHOD-LOAD",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Method)) or found.method != name:
        raise OptionError(
            f"{point.value} is no Method whose `method` is {name!r}",
            remedy="correct the entry point, or the class",
            code="FK-METHOD-CLASS",
        )
    return found


@cache
def client_of(method: type[Method]) -> type[MethodClient]:
    """Return the client of a method; OptionError if the method names none."""
    found = method.client
    if isinstance(found, str) and found:
        module, _, name = found.partition(":")
        found = getattr(import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, MethodClient)):
        raise OptionError(
            f"{method.__name__} does not name its client",
            remedy="set `client` to its MethodClient",
            code="FK-METHOD-CLASS",
        )
    return found
