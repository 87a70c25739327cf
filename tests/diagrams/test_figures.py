"""Heat maps and grids, checked on the rendered pixels and text."""

import itertools
import threading

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard.diagrams import THEMES, grid, heatmap
from regard.errors import UserError

THEME_NAMES = sorted(THEMES)


def words(count: int, prefix: str = "w") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def pixels(figure: Figure) -> np.ndarray:
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3] / 255.0


def cell_brightness(figure: Figure, axis: Axes, rows: int, columns: int) -> np.ndarray:
    """The luma at the centre of each cell of the rendered figure."""
    image = pixels(figure)
    luma = np.zeros((rows, columns))
    for row, column in itertools.product(range(rows), range(columns)):
        x, y = axis.transData.transform((column + 0.5, row + 0.5))
        luma[row, column] = image[image.shape[0] - 1 - int(y), int(x)] @ [0.299, 0.587, 0.114]
    return luma


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """All pairs of drawn texts whose bounding boxes overlap."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    texts = list(figure.texts)
    for axis in figure.axes:
        texts += [*axis.get_xticklabels(), *axis.get_yticklabels(), axis.yaxis.label]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text()]
    edges = np.array([box.extents for _, box in boxes])
    inside = edges[:, :2].min() >= 0
    width, height = figure.bbox.size
    assert inside
    assert edges[:, 2].max() <= width
    assert edges[:, 3].max() <= height
    low, high = edges[:, None, :2], edges[None, :, 2:]
    disjoint = (low >= high).any(-1) | (low >= high).any(-1).T
    first, second = np.nonzero(np.triu(~disjoint, 1))
    return [(boxes[i][0], boxes[j][0]) for i, j in zip(first, second, strict=True)]


@pytest.mark.parametrize("theme", THEME_NAMES)
def test_brightness_increases_with_weight(theme: str) -> None:
    weights = np.random.default_rng(0).uniform(0, 0.3, (5, 7))
    weights[3, 1] = 0.9
    figure = heatmap(weights, words(7), words(5), theme=theme)
    brightness = cell_brightness(figure, figure.axes[0], 5, 7)
    assert np.unravel_index(brightness.argmax(), brightness.shape) == (3, 1)
    assert (np.argsort(brightness[0]) == np.argsort(weights[0])).all()


@pytest.mark.parametrize("theme", THEME_NAMES)
def test_a_diagonal_is_visible(theme: str) -> None:
    figure = heatmap(np.eye(100), words(100), words(100), theme=theme)
    brightness = cell_brightness(figure, figure.axes[0], 100, 100)
    assert (brightness.argmax(axis=1) == np.arange(100)).all()
    assert brightness.diagonal().min() - brightness[~np.eye(100, dtype=bool)].max() > 0.5


def test_first_row_is_on_top_and_first_column_on_the_left() -> None:
    axis = heatmap(np.eye(3), ["a", "b", "c"], ["x", "y", "z"]).axes[0]
    left, top = axis.transData.transform((0, 0))
    right, bottom = axis.transData.transform((3, 3))
    assert left < right
    assert top > bottom
    assert [t.get_text() for t in axis.get_xticklabels()] == ["a", "b", "c"]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["x", "y", "z"]
    assert axis.get_xticklabels()[0].get_window_extent().y0 > top


@pytest.mark.parametrize("theme", THEME_NAMES)
def test_special_tokens_and_spaces_are_dimmed(theme: str) -> None:
    axis = heatmap(np.ones((2, 3)) / 3, ["a", " ", "<end>"], ["b", "<unk>"], theme=theme).axes[0]
    content, dimmed = THEMES[theme].text, THEMES[theme].dimmed
    assert [t.get_color() for t in axis.get_xticklabels()] == [content, dimmed, dimmed]
    assert [t.get_color() for t in axis.get_yticklabels()] == [content, dimmed]
    assert axis.get_xticklabels()[1].get_text() == "␣"


def test_background_has_the_colour_of_the_theme() -> None:
    for theme in THEME_NAMES:
        corner = pixels(heatmap([[0.5]], ["a"], ["b"], theme=theme))[2, 2]
        assert corner == pytest.approx(to_rgb(THEMES[theme].background), abs=0.01)


def test_tokens_are_not_parsed_as_math() -> None:
    tokens = ["$x_1$", "$", "a\\frac", "x_2^3", "$\\undefined$", "{", "100%", "#"]
    figure = heatmap(np.eye(8), tokens, tokens, title="$\\oops$ costs 5$")
    pixels(figure)
    texts = [*figure.axes[0].get_xticklabels(), *figure.axes[0].get_yticklabels(), *figure.texts]
    assert not any(text.get_parse_math() for text in texts)
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == tokens


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 2), (1, 200), (200, 1), (20, 22), (61, 73), (200, 200)]
)
@pytest.mark.parametrize("kind", ["letters", "words"])
def test_labels_stay_inside_and_do_not_overlap(rows: int, columns: int, kind: str) -> None:
    stem = "W" if kind == "letters" else "Geschwindigkeitsbegrenzung"
    source = [stem[: 1 + n % len(stem)] for n in range(columns)]
    target = [stem[: 1 + n % len(stem)] for n in range(rows)]
    weights = np.full((rows, columns), 1 / columns)
    figure = heatmap(weights, source, target, title="Attention weights " * 8)
    assert overlaps(figure) == []
    width, height = figure.get_size_inches()
    assert 2 < width < 14
    assert 1.5 < height < 12
    axis = figure.axes[0]
    assert len(axis.get_xticklabels()) >= min(columns, 25)
    assert len(axis.get_yticklabels()) >= min(rows, 25)
    assert axis.get_xticklabels()[0].get_fontsize() >= 6


def test_all_labels_are_drawn_while_they_fit() -> None:
    axis = heatmap(np.ones((12, 14)) / 14, words(14), words(12)).axes[0]
    assert len(axis.get_xticklabels()) == 14
    assert len(axis.get_yticklabels()) == 12


def test_numpy_torch_and_lists_give_the_same_figure() -> None:
    rows = [[0.25, 0.75], [1.0, 0.0]]
    tensor = torch.tensor(rows, requires_grad=True)
    inputs = [rows, np.array(rows), tensor, tensor.to(torch.bfloat16)]
    images = [pixels(heatmap(weights, ["a", "b"], ["c", "d"])) for weights in inputs]
    assert all((image == images[0]).all() for image in images)


@pytest.mark.parametrize(
    ("highest", "end"), [(1.004, 1), (0.51, 1), (0.5, 0.5), (0.19, 0.2), (0.05, 0.05), (0, 0.01)]
)
def test_colour_scale_ends_at_the_next_round_weight(highest: float, end: float) -> None:
    """Diffuse attention is visible, and the bar says where its scale ends."""
    figure = heatmap([[0.0, highest]], ["a", "b"], ["c"])
    bar = figure.axes[-1]
    assert bar.get_ylim() == (0, end)
    note = "" if end == 1 else f"\n(scale ends at {end:g})"
    assert bar.get_ylabel() == f"attention weight{note}"
    assert [label.get_text() for label in bar.get_yticklabels()][-1] == f"{end:g}"
    assert overlaps(figure) == []


def test_panels_of_a_grid_share_one_scale() -> None:
    weights = np.full((1, 2, 1, 2), 0.1)
    weights[0, 1] = 0.9
    figure = grid(weights, ["a", "b"], ["c"])
    diffuse, sharp = (cell_brightness(figure, axis, 1, 2) for axis in figure.axes[:2])
    assert figure.axes[-1].get_ylim() == (0, 1)
    assert diffuse.max() < sharp.min()


def test_axes_have_names() -> None:
    figure = heatmap(np.eye(3), words(3), words(3), title="a title", note="a note")
    texts = [text.get_text() for text in figure.texts]
    assert texts == ["a title", "a note", "source (keys)", "target (queries)"]
    figure = heatmap(np.eye(3), words(3), words(3), axes=("x", "y"))
    assert [text.get_text() for text in figure.texts] == ["x", "y"]


def test_weights_outside_0_and_1_scale_to_the_data() -> None:
    figure = heatmap([[-2.0, 0.0, 1.0]], ["a", "b", "c"], ["d"])
    assert figure.axes[-1].get_ylim() == (-2, 2)
    assert figure.axes[-1].get_ylabel() == "attention weight\n(scale to 2)"
    brightness = cell_brightness(figure, figure.axes[0], 1, 3)[0]
    assert brightness[0] > brightness[2] > brightness[1]
    assert overlaps(figure) == []
    assert heatmap([[0.0, 7.0]], ["a", "b"], ["c"]).axes[-1].get_ylim() == (0, 7)


def test_grid_rows_are_layers_and_columns_are_heads() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (2, 3, 5))
    weights[1, 2, 4] = np.eye(7)[6]
    figure = grid(weights, words(7, "s"), words(5, "t"), title="heads")
    assert len(figure.axes) == 2 * 3 + 1
    texts = [text.get_text() for text in figure.texts]
    headings = ["head 1", "head 2", "head 3", "heads", "layer 1", "layer 2"]
    assert sorted(texts) == [*headings, "source (keys)", "target (queries)"]
    assert overlaps(figure) == []
    last = figure.axes[5]
    brightness = cell_brightness(figure, last, 5, 7)
    assert np.unravel_index(brightness.argmax(), brightness.shape) == (4, 6)
    assert [len(axis.get_xticklabels()) for axis in figure.axes[:6]] == [7, 7, 7, 0, 0, 0]
    assert [len(axis.get_yticklabels()) for axis in figure.axes[:6]] == [5, 0, 0, 5, 0, 0]


def test_grid_omits_tokens_that_do_not_fit() -> None:
    figure = grid(np.full((6, 8, 40, 40), 1 / 40), words(40), words(40))
    assert not any(axis.get_xticklabels() for axis in figure.axes[:-1])
    assert overlaps(figure) == []


def test_deep_grid_grows_until_tokens_are_legible() -> None:
    """SmolLM2 has 30 layers of 9 heads: too many for a slide, but the tokens should be legible."""
    figure = grid(np.full((13, 5, 11, 31), 1 / 31), words(31, "source"), words(11, "target"))
    left = figure.axes[:-1:5]
    assert [len(axis.get_yticklabels()) for axis in left] == [11] * 13
    assert [len(axis.get_xticklabels()) for axis in figure.axes[:5]] == [31] * 5
    assert left[0].get_yticklabels()[0].get_fontsize() >= 4.5
    assert overlaps(figure) == []
    width, height = figure.get_size_inches()
    assert width < 23
    assert height < 43


def test_large_matrices_are_rasterised_and_small_ones_are_paths() -> None:
    for shape, rasterised in {
        (1, 3, 7, 5): False,
        (2, 3, 67, 53): True,
        (1, 2, 53, 47): False,
    }.items():
        figure = grid(np.full(shape, 0.1), words(shape[3]), words(shape[2]))
        is_image = [bool(axis.images) for axis in figure.axes[:-1]]
        assert is_image == [rasterised] * (shape[0] * shape[1])


def test_grid_of_one_matrix_is_the_heatmap() -> None:
    weights = np.eye(3)
    one = pixels(grid(weights[None, None], words(3), words(3), title="t"))
    assert (one == pixels(heatmap(weights, words(3), words(3), title="t"))).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 3)), r"2 x 2, got weights of 2 x 3"),
        (np.ones((1, 2, 2)), r"\[target source\], got \[1, 2, 2\]"),
        (np.array([[0.5, np.nan], [0, 1]]), "1 of 4 weights are not finite"),
        ([["a", "b"]], "array"),
        (np.ones((0, 2)), "nothing to draw"),
    ],
)
def test_invalid_weights_error(weights: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        heatmap(weights, ["a", "b"], ["c", "d"])


def test_unknown_theme_error_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'sepia'.*light, dark"):
        heatmap([[1.0]], ["a"], ["b"], theme="sepia")


def test_threads_draw_the_same_figure() -> None:
    images: list[np.ndarray] = []
    expected = pixels(heatmap(np.eye(4), words(4), words(4)))
    threads = [
        threading.Thread(
            target=lambda: images.append(pixels(heatmap(np.eye(4), words(4), words(4))))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(images) == 4
    assert all((image == expected).all() for image in images)
