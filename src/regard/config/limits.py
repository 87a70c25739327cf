"""Upper bounds of numbers: far above any use, far below what never ends or exhausts the memory.

Each setting has its own bound where it is declared; here are those that several places share.
"""

SEED = 2**63 - 1
COUNT = 10**9
"""Of steps, or of occurrences: what may be large, since nothing of that size is allocated."""
DIM = 2**16
"""Size of a vector. What a whole model needs is checked when it is built: `models.memory`."""
LAYERS = 1000
HEADS = 1024
TOKENS = 100_000
"""Of one text."""
CHARACTERS = 10**6
"""Of one line."""
SENTENCES = 10**7
BEAM = 1000
"""Beam width, and number of outputs per text."""
TEMPERATURE = 1e6
RATIO = 1e6
"""Of two lengths; also of the mean log-probability of a token, downwards."""
RUNS = 1000
"""Of one comparison."""
PROCESSES = 256
PICTURES = 10_000
SECONDS = 86_400.0
