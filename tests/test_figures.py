"""Figures: what they say, what they count, and that equal figures are equal files."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from flexround.errors import InputError
from flexround.results.paper_numbers import load_figure7
from flexround.results.render.figure_style import save
from flexround.results.render.figures import Accuracies, Shifts, figure3, figure4, figure5, figure6, figure7


def shifts(name: str = "MobileNetV2", largest: float = 2.0) -> Shifts:
    """Ten weights of which two moved by more than one step: one small, one large."""
    weight = np.linspace(-largest, largest, 10).reshape(5, 2)
    learned = np.array([3, 1, 0, 0, 2, 0, 0, 0, 1, 0], dtype=np.uint8).reshape(5, 2)
    rtn = np.array([0, 0, 1, 0, 0, 0, 0, 0, 0, 0], dtype=np.uint8).reshape(5, 2)
    return Shifts(name, weight, learned, rtn)


def texts(figure: Figure) -> str:
    """Return all text of a figure."""
    parts = [figure, *figure.subfigs]
    found = [text.get_text() for part in parts for text in part.texts]
    found += [part.get_suptitle() for part in parts]
    found += [axes.get_title() for axes in figure.axes] + [text.get_text() for a in figure.axes for text in a.texts]
    return "\n".join(found)


def test_unsigned_codes_do_not_wrap_around() -> None:
    assert shifts().steps.tolist() == [3, 1, -1, 0, 2, 0, 0, 0, 1, 0]
    assert shifts().share == 20.0


def test_different_layers_are_refused() -> None:
    with pytest.raises(InputError, match="same layer"):
        Shifts("net", np.zeros(3), np.zeros(3), np.zeros(2))
    with pytest.raises(InputError, match="same layer"):
        Shifts("net", np.zeros(0), np.zeros(0), np.zeros(0))


def test_figure3_counts_small_and_large_weights_apart() -> None:
    figure = figure3([shifts(), shifts("ResNet-18", largest=0.5)], 1.0, "first conv", "mini")
    shown = texts(figure)
    assert len(figure.axes) == 6
    assert "(scale: mini)" in shown
    assert "MobileNetV2: 20.0 % of the weights moved by more than one step (paper: 12.8 %)" in shown
    assert "ResNet-18: 20.0 % of the weights moved by more than one step (paper: 1.5 %)" in shown
    assert "|W| ≤ 1: 4 weights\n25.0 % beyond one step" in shown
    assert "|W| > 1: 6 weights\n16.7 % beyond one step" in shown
    assert "no weight above 1" in shown
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in figure.axes[1].patches}
    assert heights == {-1: 1, 0: 2, 1: 2, 3: 1}


def test_figure3_without_small_weights() -> None:
    assert "no weight up to 0.01" in texts(figure3([shifts()], 0.01, "first conv", "mini"))


def test_figure4_draws_every_weight() -> None:
    figure = figure4(shifts(), "second conv of the sixth block", "mini")
    offsets = np.asarray(figure.axes[0].collections[0].get_offsets())
    np.testing.assert_array_equal(offsets, np.column_stack([shifts().weight.ravel(), shifts().steps]))
    assert "20.0 %" in texts(figure)


def test_figure5_reaches_far() -> None:
    weight = np.linspace(-0.2, 0.2, 401)
    rtn = np.round(weight / 0.004).astype(np.int64) + 128
    learned = rtn + np.round(weight * 300).astype(np.int64)  # up to 60 steps away
    figure = figure5(
        Shifts("BERT-Base", weight, learned.astype(np.uint8), rtn.astype(np.uint8)), "first query projection", "mini"
    )
    low, high = figure.axes[0].get_ylim()
    assert low < -60 < 60 < high
    assert "the farthest by 60 (paper: about 60)" in texts(figure)
    assert "first query projection of BERT-Base" in texts(figure)
    figure.draw_without_rendering()
    title = figure.axes[0].title.get_window_extent()
    assert title.x0 >= 0
    assert title.x1 <= figure.bbox.x1


def test_figure6_has_a_row_for_each_model_and_one_vertical_axis_in_it() -> None:
    names = [f"{model}, {method}" for model in ("A", "B") for method in ("AdaRound", "AdaQuant", "FlexRound")]
    figure = figure6([shifts(name) for name in names], "first conv of the first block", "mini")
    assert len(figure.axes) == 6
    for row in (figure.axes[:3], figure.axes[3:]):
        assert len({axes.get_ylim() for axes in row}) == 1
        assert [axes.get_title().split(":")[0] for axes in row] == ["AdaRound", "AdaQuant", "FlexRound"]


def test_figure7_shows_mean_deviation_and_the_paper() -> None:
    points = [Accuracies("B + X", 32, [60.0, 62.0, 64.0]), Accuracies("B + X", 64, [65.0, 65.0, 65.0])]
    figure = figure7(points, load_figure7(), "MobileNetV2", "mini")
    ours, paper = figure.axes
    assert ours.lines[0].get_ydata().tolist() == [62.0, 65.0]
    bar = ours.collections[0].get_segments()[0]
    assert bar[:, 1].tolist() == [60.0, 64.0]
    assert "n = 3 seeds" in texts(figure)
    assert paper.lines[0].get_ydata()[0] == 63.93
    assert [t.get_text() for t in paper.get_legend().get_texts()] == ["B + AdaRound", "B + FlexRound"]


@pytest.mark.parametrize(
    ("counts", "expected"), [((1, 1), "one seed"), ((2, 3), "n = 2 to 3 seeds")], ids=["one", "unequal"]
)
def test_figure7_states_the_seeds(counts: tuple[int, int], expected: str) -> None:
    points = [Accuracies("B + X", 32 * count, [60.0] * count) for count in counts]
    assert expected in texts(figure7(points, load_figure7(), "MobileNetV2", "mini"))


def test_figure7_without_runs_is_refused() -> None:
    with pytest.raises(InputError, match="evaluate"):
        figure7([], load_figure7(), "MobileNetV2", "mini")
    with pytest.raises(InputError, match="evaluate"):
        figure7([Accuracies("B + X", 32, [])], load_figure7(), "MobileNetV2", "mini")


def test_equal_figures_are_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, epoch in (("a", "1"), ("b", "1000000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)  # what matplotlib would write as the date
        save(figure3([shifts()], 1.0, "first conv", "mini"), tmp_path / name / "figure3.v1")
    for suffix in (".pdf", ".png"):
        one, other = ((tmp_path / name / f"figure3.v1{suffix}").read_bytes() for name in "ab")
        assert len(one) > 1000
        assert one == other
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["figure3.v1.pdf", "figure3.v1.png"]
    assert b"Date" not in (tmp_path / "a" / "figure3.v1.pdf").read_bytes()
