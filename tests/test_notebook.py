"""The example notebook runs: all of its cells, with one number of bits and few iterations where no claim needs more."""

import nbclient
import nbformat
import pytest

from flexround.settings.layout import ROOT

SHORTER = {"(4, 3, 2)": "(2,)", "(3, 2)": "(2,)", '{"iters": 500, "lr": more': '{"iters": 20, "lr": more'}
SHORTER |= {"iters=200": "iters=20", "iters=300": "iters=20", '"iters": 300': '"iters": 20', "range(250)": "range(30)"}
SHORTER |= {"range(400)": "range(60)", "train[:512]": "train[:64]", "sentences(128)": "sentences(16)"}


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_its_claims_hold():
    notebook = nbformat.read(ROOT / "examples/library.ipynb", 4)
    for old, new in SHORTER.items():
        assert any(old in cell.source for cell in notebook.cells), old
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "True ['README.md', 'manifest.json'" in text, "loaded as it was saved"
    ours, theirs = text.rsplit("ours ", 1)[1].split(", read by transformers ")
    assert float(ours) == pytest.approx(float(theirs), abs=1e-4)
    assert "AdaRound, 2 bit: rounded error over that before rounding, largest of the blocks: 1.0" in text
