"""Regard: attention-based sequence-to-sequence models, and where they look.

The tree is the path of a sentence. Read it in this order:

    config, presets   every choice, and named experiments
    text              words in, batches out
    attention         the mathematics: scores, normalisers, attend, heads, positions
    models            encode, begin, step: one interface, several families
    search            from steps to an output
    translator        the whole path in one short file
    diagrams          weights and tokens in, picture out
    evaluation        metrics on what the translator says
    training          objective, schedule, loop, checkpoint
    compare           experiments: presets x variations x seeds -> tables and curves
    labs              claims about attention, to run and to see
    cli               the commands
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Translation", "Translator", "UserError", "__version__", "load", "register"]

if TYPE_CHECKING:
    from regard.errors import UserError
    from regard.models import register
    from regard.translator import Translation, Translator, load

_HOME = {
    "Translation": "regard.translator",
    "Translator": "regard.translator",
    "UserError": "regard.errors",
    "load": "regard.translator",
    "register": "regard.models",
}


def __getattr__(name: str) -> Any:
    # PyTorch takes a second to import: `regard --help` and `regard presets` do not wait for it.
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
