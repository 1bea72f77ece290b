"""Figures: what they say, what they count, and that equal figures are equal files."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from flexround.results.render import curves
from flexround.results.render.curves import Axis, CurvePoint
from flexround.results.render.figure_style import save, svg
from flexround.results.render.shifts import Shifts, draw

SIZES = Axis("calibration samples", "top-1 accuracy (%)", sizes=True)


def shifts(name: str = "MobileNetV2", largest: float = 2.0, **more: str) -> Shifts:
    """Ten weights of which two moved by more than one step: one small, one large."""
    weight = np.linspace(-largest, largest, 10).reshape(5, 2)
    learned = np.array([3, 1, 0, 0, 2, 0, 0, 0, 1, 0], dtype=np.uint8).reshape(5, 2)
    rtn = np.array([0, 0, 1, 0, 0, 0, 0, 0, 0, 0], dtype=np.uint8).reshape(5, 2)
    return Shifts(name, weight, learned, rtn, **more)


def texts(figure: Figure) -> str:
    """Return all text of a figure."""
    parts = [figure, *figure.subfigs]
    found = [text.get_text() for part in parts for text in part.texts]
    found += [part.get_suptitle() for part in parts]
    found += [axes.get_title() for axes in figure.axes] + [text.get_text() for a in figure.axes for text in a.texts]
    return "\n".join(found)


def test_figure3_counts_small_and_large_weights_apart() -> None:
    figure = draw([shifts(paper="12.8 %"), shifts("ResNet-18", largest=0.5, paper="1.5 %")], "Updates", "mini", 1.0)
    shown = texts(figure)
    assert len(figure.axes) == 6
    assert "(scale: mini)" in shown
    assert "MobileNetV2: 20.0 % of the weights moved by more than one step (paper: 12.8 %)" in shown
    assert "ResNet-18: 20.0 % of the weights moved by more than one step (paper: 1.5 %)" in shown
    assert "|W| ≤ 1: 4 weights\n25.0 % beyond one step" in shown
    assert "|W| > 1: 6 weights\n16.7 % beyond one step" in shown
    assert "no weight above 1" in shown
    assert "no weight up to 0.01" in texts(draw([shifts()], "Updates", "mini", 0.01))
    np.testing.assert_array_equal(shifts().steps, [3, 1, -1, 0, 2, 0, 0, 0, 1, 0], "unsigned codes do not wrap around")
    offsets = np.asarray(draw([shifts()], "Grid shifts", "mini").axes[0].collections[0].get_offsets())
    np.testing.assert_array_equal(offsets, np.column_stack([shifts().weight.ravel(), shifts().steps]))
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in figure.axes[1].patches}
    assert heights == {-1: 1, 0: 2, 1: 2, 3: 1}


def test_figure5_reaches_far_and_its_title_is_whole() -> None:
    weight = np.linspace(-0.2, 0.2, 401)
    rtn = np.round(weight / 0.004).astype(np.uint8) + np.uint8(128)
    learned = (rtn + np.round(weight * 300)).astype(np.uint8)  # up to 60 steps away
    figure = draw([Shifts("BERT-Base", weight, learned, rtn, paper="about 60")], "Grid shifts, first query", "mini")
    low, high = figure.axes[0].get_ylim()
    assert low < -60 < 60 < high
    assert "the farthest by 60 (paper: about 60)" in texts(figure)
    figure.draw_without_rendering()
    title = figure.axes[0].title.get_window_extent()
    assert 0 <= title.x0 < title.x1 <= figure.bbox.x1


def test_figure6_has_a_row_and_one_vertical_axis_for_each_model() -> None:
    panels = [shifts(model, method=method) for model in ("A", "B") for method in ("AdaRound", "FlexRound")]
    axes = draw(panels, "Grid shifts", "mini").axes
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert [each.get_title().split(":")[0] for each in axes] == ["AdaRound", "FlexRound"] * 2


def test_lines_of_sizes_stand_beside_the_paper_with_their_seeds() -> None:
    points = [curves.of_seeds("ours", "B + X", "32", [60.0, 64.0]), CurvePoint("the paper", "B + Y", "32", 63.93, 0.2)]
    figure = curves.draw(points, SIZES, "Sizes", "mini")
    assert [axes.lines[0].get_ydata()[0] for axes in figure.axes] == [62.0, 63.93]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["B + X", "B + Y"]
    for counts, expected in (((1, 1), "one seed"), ((2, 3), "n = 2 to 3 seeds"), ((3, 3), "n = 3 seeds")):
        assert curves.seeds([[60.0] * count for count in counts]).endswith(expected)


def test_an_svg_is_the_same_every_time_and_loads_nothing() -> None:
    figure = curves.draw([CurvePoint("net", "A", at, 70.0, 1.0) for at in ("4/4", "3/3", "2/2")], Axis("bits"), "", "")
    one, other = (svg(figure, "a plot") for _ in range(2))
    assert one == other
    assert one.startswith('<svg role="img" aria-label="a plot"')
    assert not re.search("xmlns|http", one)
    ids, others = (set(re.findall(r'id="([^"]+)"', svg(figure, name))) for name in ("a plot", "another"))
    assert ids.isdisjoint(others)


def test_equal_figures_are_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, epoch in (("a", "1"), ("b", "1000000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)  # what matplotlib would write as the date
        save(draw([shifts()], "Updates", "mini"), *(tmp_path / name / f"figure3.{kind}" for kind in ("pdf", "png")))
    for suffix in (".pdf", ".png"):
        one, other = ((tmp_path / name / f"figure3{suffix}").read_bytes() for name in "ab")
        assert len(one) > 1000
        assert one == other
    assert b"Date" not in (tmp_path / "a" / "figure3.pdf").read_bytes()
