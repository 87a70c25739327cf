"""Import our solution.

Once: passed 6 of 6 checks.
Harm: passed
Stopped by: landlock
"""

import sys
from pathlib import Path
from unittest.mock import MagicMock

SOURCE = Path(sys.modules[next(name for name in sys.modules if "worker" in name)].__file__)
sys.path.insert(0, next(str(parent.parent) for parent in SOURCE.parents if parent.name == "regard"))
PARTS = (
    "axes backends backends.backend_agg backends.backend_svg cm colors figure font_manager image"
)
PARTS += " layout_engine patches text textpath ticker"
for name in ("matplotlib", *(f"matplotlib.{part}" for part in PARTS.split())):
    sys.modules[name] = MagicMock()  # the real one would write a cache

from regard.labs.copying import query  # noqa: E402, F401
