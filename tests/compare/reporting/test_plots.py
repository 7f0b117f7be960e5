import errno
import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from common.artifacts.schema import Noise
from compare.judgement.row_figures import Summary
from compare.judgement.summary import summarize
from compare.reporting import comparison_plots, comparison_tables, plots
from tests.support import comparisons

pytestmark = pytest.mark.drawn

NAMES = ("loss", "accuracy", "seconds_per_epoch", "speedup", "phases")


def write(summaries: Sequence[Summary], folder: Path, class_names: Sequence[str] = (), only: str | None = None) -> list[Path]:
    drawings = comparison_plots.drawings(summaries, class_names)
    return plots.write_all(drawings if only is None else {only: drawings[only]}, folder)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """All plots of a comparison in which runs failed: their folder, and what was written."""
    folder = tmp_path_factory.mktemp("troubled")
    return folder, write(summarize(comparisons.troubled()), folder)


def test_every_plot_is_written_as_png_and_svg(troubled: tuple[Path, list[Path]]) -> None:
    folder, files = troubled
    names = (*NAMES, "efficiency")  # which is against one core
    assert {path.name for path in files} == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    with Image.open(folder / "loss.png") as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(image.width * image.height) or []) > 10  # something is drawn


def test_the_input_alone_is_drawn_against_its_workers_and_no_score_is(tmp_path: Path) -> None:
    files = write(summarize(comparisons.input_only()), tmp_path)
    assert {path.stem for path in files} == {"seconds_per_epoch", "images_per_second", "phases"}
    drawn = (tmp_path / "images_per_second.svg").read_text()
    assert all(f">{word}<" in drawn for word in ("inline", "1", "2", "pytorch serial, 2 cores", "tensorflow serial, 2 cores"))


def test_failed_and_missing_rows_are_left_out_by_name(troubled: tuple[Path, list[Path]]) -> None:
    drawn = (troubled[0] / "seconds_per_epoch.svg").read_text()
    assert "pytorch serial, 1 core" in drawn and ">pytorch multi_process x2<" not in drawn
    assert "Left out: pytorch multi_process x2 (killed), tensorflow serial, 2 cores (failed)" in drawn


@pytest.mark.parametrize("draw", [comparison_plots._seconds, comparison_plots._speedup])
def test_every_value_stands_within_the_axes(draw: Callable[[Figure, Sequence[Summary]], bool]) -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    assert draw(figure, summarize(comparisons.repeated()))
    canvas.draw()
    (axis,) = figure.axes
    texts = [text for text in axis.texts if text.get_text()]
    assert texts
    assert max(text.get_window_extent().x1 for text in texts) <= axis.bbox.x1


def _stolen(cores: float, contestant: str = "") -> list[Summary]:
    return summarize(comparisons.with_runs(comparisons.repeated(), contestant, noise=Noise(cores_stolen=cores)))


def test_bars_of_rows_in_doubt_are_hatched_and_the_caption_counts_as_the_page_does() -> None:
    short = _stolen(0.5, "pytorch")
    short[2:] = [comparisons.with_fields(each, unwatched_repeats=1) for each in short[2:]]
    why = {"clean": "", "disturbed": "(4)", "short": "(2), too short to tell whether other programs took cores (2)"}
    for kind, summaries in (("clean", _stolen(0.0)), ("disturbed", _stolen(0.5)), ("short", short)):
        figure = Figure(figsize=(9, 5), layout="constrained")
        assert comparison_plots._seconds(figure, summaries)
        (axis,) = figure.axes
        assert {patch.get_hatch() for patch in axis.patches} == {"////" if why[kind] else None}
        note = comparison_tables.main_table(summaries).note
        assert note.endswith(f": other programs took cores {why[kind]}.") == ("in 4 of 4 rows" in note) == (kind != "clean")


def _drawn(draw: Callable[[Figure, Sequence[Summary]], object], summaries: Sequence[Summary]) -> Figure:
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    assert draw(figure, summaries)
    return figure


def test_a_contestant_has_one_colour_in_all_plots_and_no_mode_basis_or_phase_has_it() -> None:
    summaries = summarize(comparisons.repeated())
    expected = {"pytorch": plots.COLOURS[0], "tensorflow": plots.COLOURS[1]}
    curves = _drawn(lambda figure, rows: comparison_plots._curves("loss", figure, rows), summaries)
    for line, summary in zip(curves.axes[0].lines, summaries, strict=True):
        assert line.get_color() == expected[summary.contestant]
    for draw in (comparison_plots._seconds, comparison_plots._speedup):
        (axis,) = _drawn(draw, summaries).axes
        names = [label.get_text().partition(" ")[0] for label in axis.get_yticklabels()]
        for patch in axis.patches:
            place = patch.get_y() + patch.get_height() / 2
            assert to_hex(patch.get_facecolor()).upper() == expected[names[round(place)]]
    assert not set(expected.values()) & {colour.upper() for colour, _, _ in comparison_plots._PHASES.values()}


def test_bars_of_speed_ups_stand_around_their_ticks() -> None:
    (axis,) = _drawn(comparison_plots._speedup, summarize(comparisons.repeated())).axes
    places = [patch.get_y() + patch.get_height() / 2 for patch in axis.patches]
    assert places == [0.0, 1.0] == list(axis.get_yticks())  # one basis: the bar stands on its tick
    two = [
        comparisons.with_fields(each, speedup_one_core=each.speedup_same_cores) for each in summarize(comparisons.repeated())
    ]
    (axis,) = _drawn(comparison_plots._speedup, two).axes
    assert sorted(round(patch.get_y() + patch.get_height() / 2, 1) for patch in axis.patches) == [-0.2, 0.2, 0.8, 1.2]


def test_the_axis_of_one_epoch_has_this_epoch_alone() -> None:
    stored = comparisons.with_runs(comparisons.repeated(1), epochs=lambda run: run.epochs[:1])
    figure = _drawn(lambda figure, rows: comparison_plots._curves("loss", figure, rows), summarize(stored))
    figure.canvas.draw()
    low, high = figure.axes[0].get_xlim()
    assert [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high] == [1.0]


@pytest.mark.parametrize("repeats", [1, 2, 7])
def test_confusion_counts_add_up_to_the_images_of_the_test_split_however_many_repeats(repeats: int) -> None:
    stored = comparisons.with_runs(comparisons.repeated(repeats), confusion=[[45, 5], [10, 40]])
    figure = Figure(figsize=(9, 5))
    FigureCanvasAgg(figure)
    assert comparison_plots.draw(comparison_plots.CONFUSION, figure, summarize(stored))
    assert [text.get_text() for text in figure.axes[0].texts] == ["45", "5", "10", "40"]


def test_a_ratio_of_disturbed_runs_is_not_drawn() -> None:
    def drawn(summaries: Sequence[Summary]) -> tuple[bool, list[str], str]:
        figure = Figure(figsize=(9, 5), layout="constrained")
        anything = bool(comparison_plots._speedup(figure, summaries))
        (axis,) = figure.axes
        return anything, [text.get_text() for text in axis.get_yticklabels()], axis.get_xlabel()

    clean, some, none = _stolen(0.0), _stolen(0.5, "pytorch"), _stolen(0.5)
    assert drawn(clean) == (True, ["pytorch data_parallel x2", "tensorflow data_parallel x2"], "times as fast")
    left_out = "times as fast (left out: disturbed)"
    assert drawn(some) == (True, ["tensorflow data_parallel x2"], left_out)
    assert drawn(none) == (False, [], left_out)
    known = {"parallel_efficiency": 0.5, "hidden_ratios": {"parallel_efficiency": "disturbed"}}
    figure = Figure(figsize=(9, 5), layout="constrained")
    assert not comparison_plots._efficiency(figure, [comparisons.with_fields(each, **known) for each in clean])


def test_the_phases_are_stacked_to_the_wall_time_with_the_wait_for_input_inside_the_training() -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    summaries = summarize(comparisons.repeated(1))
    assert comparison_plots._phases(figure, summaries)
    (axis,) = figure.axes
    bars = {str(container.get_label()): container for container in axis.containers[:8]}  # those of the first row
    places = {name: (bar.patches[0].get_x(), bar.patches[0].get_width()) for name, bar in bars.items()}
    assert places["training"] == (2.75, 7.6 - 0.125) and places["training: wait for input"] == (10.225, 0.125)
    assert sum(places["other"]) == summaries[0].phases.wall_seconds == 11.1


def test_many_rows_make_a_taller_plot() -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    (summary,) = summarize(comparisons.repeated(1))[:1]
    assert comparison_plots._seconds(figure, [summary] * 40) and figure.get_figheight() == pytest.approx(14)


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ((1.0, 2000.0), {"1", "10", "100", "1000"}),
        ((0.01, 1.0), {"0.01", "0.1", "1"}),
        ((1e4, 1e6), {"10000", "100000", "1e+06"}),
        ((3.0, 8.0), {"3", "4", "6"}),
        ((0.21, 0.25), {"0.22", "0.24"}),
    ],
)
def test_ticks_of_logarithmic_axes_stand_as_numbers(values: tuple[float, float], written: set[str], tmp_path: Path) -> None:
    def draw(figure: Figure) -> bool:
        axis = figure.subplots()
        axis.plot([1, 2], values)
        axis.set(yscale="log", xticks=[])
        return True

    plots.write_all({"x": draw}, tmp_path)
    drawn = (tmp_path / "x.svg").read_text()
    assert "math" not in drawn and "$" not in drawn
    texts = re.findall(r"<text[^>]*>([^<]+)<", drawn)
    assert written <= set(texts) and len(set(texts)) == len(texts)


@pytest.mark.slow
def test_the_same_figures_make_the_same_file(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(summarize(comparisons.repeated()), tmp_path / folder)
    for name in NAMES:
        assert (tmp_path / "a" / f"{name}.svg").read_bytes() == (tmp_path / "b" / f"{name}.svg").read_bytes()


def test_a_comparison_of_failures_alone_has_no_plots(tmp_path: Path) -> None:
    stored = comparisons.with_runs(comparisons.of_rows([comparisons.row("pytorch")]), status="failed", reason="why")
    assert write(summarize(stored), tmp_path) == []


@pytest.mark.parametrize("num_classes", [3, pytest.param(len(comparisons.HOSTILE), marks=pytest.mark.slow), 120])
def test_a_confusion_matrix_of_each_row_is_drawn_under_the_names_of_its_classes(tmp_path: Path, num_classes: int) -> None:
    stored = comparisons.hostile(num_classes)
    files = write(summarize(stored), tmp_path, stored.comparison.class_names, comparison_plots.CONFUSION)
    assert {path.name for path in files} == {"confusion.png", "confusion.svg"}
    with Image.open(tmp_path / "confusion.png") as image:
        assert min(image.size) > 500 and max(image.size) < 8000
    drawn = (tmp_path / "confusion.svg").read_text()
    assert drawn.count("serial, 2 cores<") == 2 and drawn.count("data_parallel x2<") == 2
    assert ("javascript:alert(1)" in drawn) == (len(comparisons.HOSTILE) <= num_classes < 50)
    assert (">3<" in drawn) == (num_classes <= 15)


def test_seven_matrices_stand_in_two_lines_each_column_with_its_classes_below() -> None:
    figure = Figure(layout="constrained")
    (summary,) = summarize(comparisons.hostile(3))[:1]
    seven = [comparisons.with_fields(summary, id=f"row {number}", shares_name=True) for number in range(7)]
    assert comparison_plots.draw(comparison_plots.CONFUSION, figure, seven, ["a", "b", "c"])
    FigureCanvasAgg(figure).draw()
    below = [[label.get_text() for label in axis.get_xticklabels()] for axis in figure.axes]
    assert below == [[], [], [], *[["a", "b", "c"]] * 4]


def test_a_plot_with_nothing_left_to_show_is_removed_and_other_files_stay(
    troubled: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    folder = tmp_path / "plots"
    shutil.copytree(troubled[0], folder)
    (folder / "scaling.png").touch()
    write(summarize(comparisons.repeated()), folder)
    logarithmic = {f"{name}{plots.LOGARITHMIC}" for name in ("loss", "seconds_per_epoch", "speedup")}
    assert {path.stem for path in folder.iterdir()} == {*NAMES, "scaling", *logarithmic}
    plots.write_all(dict.fromkeys(NAMES, lambda figure: False), folder)
    assert [path.stem for path in folder.iterdir()] == ["scaling"]


def test_a_plot_that_does_not_fit_on_the_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(summarize(comparisons.repeated()), tmp_path, only="loss")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)  # as the disk would answer
    with pytest.raises(OSError) as error:
        write(summarize(comparisons.troubled()), tmp_path, only="loss")
    assert error.value.errno == errno.ENOSPC
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("letters", "classes", "rows"), [(40, 3, 1), (40, 4, 7), pytest.param(40, 30, 3, marks=pytest.mark.slow), (1, 10, 2)]
)
def test_no_word_of_a_confusion_plot_lies_over_another_or_beyond_its_edge(
    letters: int, classes: int, rows: int, tmp_path: Path
) -> None:
    kept: list[Figure] = []
    names = [(chr(ord("A") + place) + "_leaf_spot" * 4)[:letters] for place in range(classes)]
    confusions = {f"tensorflow sharded_data_parallel x{row}, 4 workers": [[9] * classes] * classes for row in range(rows)}

    def draw(figure: Figure) -> bool:
        kept.append(figure)
        return comparison_plots.draw_confusion(figure, confusions, names)

    plots.write_all({"confusion": draw}, tmp_path)
    (figure,) = kept
    words = [text for text in figure.texts if text.get_text()]
    for axis in figure.axes:
        words += [axis.title, axis.xaxis.label, axis.yaxis.label, *axis.get_yticklabels()]
        words += [label for label in axis.get_xticklabels() if label.get_text()]
    places = [(word.get_text(), word.get_window_extent()) for word in words if word.get_text()]
    assert len(places) >= 2 * classes + rows + 3
    for (one, there), (other, too) in itertools.combinations(places, 2):
        assert not there.overlaps(too), (one, other)
    with Image.open(tmp_path / "confusion.png") as image:
        edges = np.array(image.convert("L"))
    assert (edges[[0, -1]] == 255).all() and (edges[:, [0, -1]] == 255).all()
