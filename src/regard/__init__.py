"""Regard: attention-based sequence-to-sequence models, and plots of their attention weights.

The tree follows a sentence through the system. Read it in this order:

    config, presets   every setting, and named experiments
    text              text in, batches out: corpora, tokenizers, synthetic tasks
    attention         scores, normalisers, attend, heads, positions
    models            encode, init_state, step: one interface, several model families
    search            decoding: greedy, beam search, sampling
    translator        text to ids, encoder, search, text: the complete path in one file
    loading           the translator of a run folder, of a shipped model, or of a run on the hub
    interventions     what happens if a token is forced, a key masked, weights set, a head ablated?
    diagrams          plots of attention weights
    evaluation        perplexity, BLEU, chrF; ablations
    training          objective, schedule, training loop, checkpoints
    compare           experiments: presets x variations x seeds -> tables and curves
    labs              claims about attention, measured and plotted
    export            runs for others: a folder for the Hugging Face hub, a page for the browser
    lines             text files, line by line
    api               `regard.load` and `regard.train`: what Python users call
    serve             models behind HTTP: a queue, batches of many clients, limits
    cli               the commands
"""

import os
import sys
from typing import TYPE_CHECKING, Any

# A thread of PyTorch's OpenMP that waits for the others spins 300,000 times before it sleeps. If another
# program uses a core, the thread that has work waits meanwhile: training steps took 9 to 11 times as long as
# with 2,000, beam search 13 to 19 times (docs/speed.md). OpenMP reads this once, when PyTorch is imported.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.2.0"
__all__ = [
    "Config",
    "Sampling",
    "Translation",
    "Translator",
    "UserError",
    "__version__",
    "load",
    "register",
    "train",
]

if TYPE_CHECKING:
    from regard.api import Translator, load, train
    from regard.config import Config
    from regard.errors import UserError
    from regard.models import register
    from regard.translation import Sampling, Translation

_HOME = {
    "Config": "regard.config",
    "Sampling": "regard.translation",
    "Translation": "regard.translation",
    "Translator": "regard.api",
    "UserError": "regard.errors",
    "load": "regard.api",
    "register": "regard.models",
    "train": "regard.api",
}


def __getattr__(name: str) -> Any:
    # PyTorch takes a second to import: `regard --help` and `regard presets` must not wait for it.
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
