"""The colours of all pictures: `THEMES`."""

from dataclasses import dataclass

from regard.errors import UserError

# Perceptually uniform colormaps of matplotlib, sampled finely enough for linear interpolation, so
# that figures and HTML share them without matplotlib. Zero is dark on light and dark backgrounds:
# brighter means more weight, or a larger magnitude in the diverging one.
_VIRIDIS = (
    *("#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e"),
    *("#21918c", "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219"),
    "#fde725",
)
_MAGMA = (
    *("#000004", "#0a0822", "#1d1147", "#36106b", "#51127c", "#6a1c81", "#832681", "#9c2e7f"),
    *("#b73779", "#d0416f", "#e75263", "#f56b5c", "#fc8961", "#fea772", "#fec488", "#fde2a3"),
    "#fcfdbf",
)
_BERLIN = (
    *("#9eb0ff", "#79abed", "#519fd3", "#3685ad", "#286886", "#1d4b61", "#14303e", "#111a20"),
    *("#190c09", "#2b0e01", "#411201", "#5b1d08", "#7d341e", "#9e513f", "#be6f63", "#df8f89"),
    "#ffadad",
)


@dataclass(frozen=True)
class Theme:
    """The colours of one picture, each `#rrggbb` unless noted otherwise."""

    background: str
    text: str
    dimmed: str
    cell_edge: str  # with opacity: #rrggbbaa
    accent: str  # tint of a token by its weight, in HTML
    negative: str  # the same, for negative weights
    sequential: tuple[str, ...]  # from smallest to largest weight
    diverging: tuple[str, ...]  # from most negative to most positive
    series: tuple[str, ...]  # lines and points, distinguishable by colour-blind readers


THEMES = {
    "light": Theme(
        background="#ffffff",
        text="#1f2430",
        dimmed="#949bab",
        cell_edge="#ffffff20",
        accent="#12a594",
        negative="#f2777a",
        sequential=_VIRIDIS,
        diverging=_BERLIN,
        series=(
            *("#0072b2", "#d55e00", "#009e73", "#cc79a7"),
            *("#b8860b", "#56b4e9", "#7f3c8d", "#5a6070"),
        ),
    ),
    "dark": Theme(
        background="#14161c",
        text="#eceef4",
        dimmed="#757d8f",
        cell_edge="#ffffff12",
        accent="#b73779",
        negative="#286886",
        sequential=_MAGMA,
        diverging=_BERLIN,
        series=(
            *("#5ab4f0", "#ff8a4c", "#3fd0a4", "#f0a6cf"),
            *("#ffc24d", "#a5d8ff", "#c99bff", "#b8bcc6"),
        ),
    ),
}


def get_theme(name: str) -> Theme:
    if name not in THEMES:
        raise UserError(f"unknown theme {name!r}: choose one of {', '.join(THEMES)}")
    return THEMES[name]


def style_variables() -> str:
    """The colours as CSS variables, light or dark as the reader's browser asks."""
    light, dark = (_variables(THEMES[name]) for name in ("light", "dark"))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _variables(theme: Theme) -> str:
    return (
        f"--background: {theme.background}; --text: {theme.text}; --dimmed: {theme.dimmed}; "
        f"--accent: {theme.accent}; --secondary: {theme.text}b0; --surface: {theme.text}12; "
        f"--border: {theme.text}30;"
    )
