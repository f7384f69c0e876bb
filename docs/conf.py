"""Configuration of the site: ``make docs`` builds it into ``build/docs``, without the network."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "fedkern-flwr"
author = "fedkern-flwr developers"
copyright = author
version = release = installed_version("fedkern-flwr")
language = "en_GB"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "plain_docstrings",
    "repository_links",
]
root_doc = "index"
exclude_patterns = ["pictures", "deploy", "extensions", "**/.ipynb_checkpoints"]
nitpicky = False

# Pages are read on GitHub too: plain Markdown, headings with GitHub's anchors, no directives but
# the tables of contents.
myst_enable_extensions: list[str] = []
myst_heading_anchors = 4
myst_links_external_new_tab = False
# Several classes have an attribute of the same name, which docstrings need not tell apart.
suppress_warnings = ["ref.python"]
highlight_language = "none"

# Tutorials are executed here, and again only when they change.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "build/docs-cache")
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the NumPy docstrings say what types are
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "fedkern-flwr"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False}
