"""Sentence lengths for the benchmarks: speed depends on lengths, not on content."""

from regard.text import datasets


def load_lengths(split: str, sentences: int) -> tuple[str, list[tuple[int, int]]]:
    """(description, (source length with end token, target length) of each sentence, in words)"""
    if datasets.find_folder("multi30k", "de", "en"):
        pairs = datasets.load("multi30k", "de", "en")[split]
        lengths = [(len(german.split()) + 1, len(english.split())) for german, english in pairs]
        description = f"lengths of Multi30k's {split} sentences"
    else:
        lengths = [(5 + 7 * row % 17, 5 + (7 * row + row % 3) % 17) for row in range(1000)]
        description = "synthetic lengths (Multi30k is not on this machine)"
    return description, [lengths[row % len(lengths)] for row in range(sentences)]
