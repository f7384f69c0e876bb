"""The tutorials run, and their own assertions about their figures hold."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIALS = sorted(DOCS.glob("tutorials/*.ipynb"))

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no source tree here")


def test_there_are_tutorials() -> None:
    assert len(TUTORIALS) >= 3


@pytest.mark.long
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, 4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    printed = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    ]
    assert printed, "the tutorial shows no figure"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_is_committed_without_outputs_and_asserts_something(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert any("assert " in cell.source for cell in cells)
