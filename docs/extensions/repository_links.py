"""A Sphinx extension: links from pages to files of the repository that are no pages of the site.

On GitHub they open the file. The site is built without knowing where the repository is hosted, so
it shows the text and the path instead; READMEs that a page of the site replaces lead to that page.
"""

from __future__ import annotations

from os.path import normpath
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

#: Files outside ``docs`` -> the page that says the same.
PAGES = {
    "README.md": "index",
    "benchmarks/README.md": "benchmarks",
    "simulations/papers/results/README.md": "papers",
}


class RepositoryLinks(SphinxTransform):
    """Turn links that leave ``docs`` into text, or into links to pages."""

    default_priority = 1  # before anything tries to resolve them

    def apply(self, **kwargs: object) -> None:
        """Visit all links of a page."""
        docs = Path(self.env.srcdir)
        for kind in (addnodes.download_reference, addnodes.pending_xref, nodes.reference):
            for link in list(self.document.findall(kind)):
                path = self._file(link, docs)
                if path is not None:
                    link.replace_self(self._instead(link, path.relative_to(docs.parent).as_posix()))

    def _file(self, link: nodes.Element, docs: Path) -> Path | None:
        """Return the file or folder outside ``docs`` that a link names, if it names one."""
        target = str(link.get("reftarget") or link.get("refuri") or "").split("#")[0]
        if not target or ":" in target:
            return None
        path = Path(normpath(docs / Path(self.env.docname).parent / target))
        if not path.exists():
            path = path.with_name(path.name + ".md")  # MyST has taken the suffix off
        outside = path.is_relative_to(docs.parent) and not path.is_relative_to(docs)
        return path if outside and path.exists() else None

    def _instead(self, link: nodes.Element, name: str) -> nodes.Node:
        page = PAGES.get(name)
        if page in self.env.found_docs:
            return addnodes.pending_xref(
                "",
                *link.children,
                refdomain="std",
                reftype="doc",
                reftarget=f"/{page}",
                refexplicit=True,
                refwarn=True,
                refdoc=self.env.docname,
            )
        path = nodes.literal("", name)
        if name.endswith(link.astext()):
            return path
        return nodes.inline("", "", *link.children, nodes.Text(" ("), path, nodes.Text(")"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
