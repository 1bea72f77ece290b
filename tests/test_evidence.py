"""The README's first table, from a CSV as a table of the scale real has it."""

from argparse import Namespace

import pytest

from flexround.errors import InputError
from flexround.results import grid
from flexround.results.render import readme_tables
from flexround.results.table_csv import write
from flexround.settings.load import load_params
from flexround.tools import readme

VALUES = {"RTN": (76.5, 54.0), "B + X": (80.0, 79.5)}


def line(row, method, bits, column, value, **more):
    facts = {"table": 1, "row": row, "section": "", "method": method, "bits": bits, "column": column, "metric": "top1"}
    return (
        facts
        | {"value": f"{value:.2f}", "n_seeds": 3, "best": 0, "status": "computed", "scale": "real", "group": row}
        | more
    )


@pytest.fixture
def text():
    lines = [line(1, "Full-precision", "32/32", column, value) for column, value in (("A", 81.0), ("B", 83.0))]
    row = 1
    for place, bits in enumerate(("4/32", "3/32")):
        for method, values in VALUES.items():
            row += 1
            best = int(method == "B + X" and bits == "3/32")
            for column in ("A", "B"):
                lines.append(line(row, method, bits, column, values[place], rival="other", best=best))
        row += 1
        lines += [line(row, "Ablation", bits, column, 70.0 + place) for column in ("A", "B")]
    return write(lines)


def test_methods_are_rows_and_bits_of_networks_columns(text):
    params = load_params("real")
    lines = readme_tables.evidence(grid.read(text), params.tables[1], params.scale).splitlines()
    for words in ("ResNets on CIFAR-10 as lossy JPEGs", "Median of 3 seeds", "Bold: best of its column"):
        assert words in lines[0]
    level = readme_tables.evidence(grid.read(text.replace(",6,1,other", ",6,0,other")), params.tables[1], params.scale)
    assert "No value is the best of its column" in level
    assert lines[2:] == [
        "| top-1 (%) | A, 4/32 | A, 3/32 | B, 4/32 | B, 3/32 |",
        "| --- | --: | --: | --: | --: |",
        "| Full-precision | 81.00 | 81.00 | 83.00 | 83.00 |",
        "| RTN | 76.50 | 54.00 | 76.50 | 54.00 |",
        "| B + X | 80.00 | **79.50** | 80.00 | **79.50** |",
        "| Ablation | 70.00 | 71.00 | 70.00 | 71.00 |",
    ]


def test_the_page_gets_the_table_and_the_figure(text, tmp_path):
    page, table, drawn = tmp_path / "README.md", tmp_path / "real1.csv", tmp_path / "figure8.png"
    figure = tmp_path / "docs/bits.png"
    arguments = Namespace(part="evidence", scale="real", tables=tmp_path, page=page, drawn=drawn, figure=figure)
    with pytest.raises(InputError, match=r"real1\.csv: missing; make the tables of the scale real"):
        readme.run(arguments)
    table.write_text(text)
    begin, end = readme_tables.MARKERS["evidence"]
    page.write_text(f"a\n{begin}\nold\n{end}\nb\n")
    readme.run(arguments)
    assert not arguments.figure.exists()
    assert "![" not in page.read_text()
    drawn.write_bytes(b"figure")
    readme.run(arguments)
    assert arguments.figure.read_bytes() == b"figure"
    assert "\n![Accuracy against bits](docs/bits.png)\n" in page.read_text()
    first, last = page.read_text().split(begin)[0], page.read_text().split(end)[1]
    assert (first, last) == ("a\n", "\nb\n")
    assert "\nold\n" not in page.read_text()
