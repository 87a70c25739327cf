"""Train on pairs from Python lists, then evaluate, score, explain, save and export: Roman numerals to digits.

python examples/train_from_lists.py            # half a minute on a laptop
"""

import sys
from pathlib import Path

import regard
from regard import export

VALUES = 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1
SYMBOLS = "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"
SETTINGS = {
    "tokenizer": {"kind": "characters"},
    "model": {"kind": "recurrent", "hidden_dim": 64, "embedding_dim": 64},
    "training": {"epochs": 25, "batch_sentences": 16, "learning_rate": 3e-3},
}


def roman(n: int) -> str:
    """14 -> 'XIV'"""
    fitting = (
        (value, symbol)
        for value, symbol in zip(VALUES, SYMBOLS, strict=True)
        if value <= n
    )
    return next((symbol + roman(n - value) for value, symbol in fitting), "")


def main(folder: str, settings: dict = SETTINGS) -> regard.Translator:
    pairs = [(roman(n), str(n)) for n in range(1, 1000)]
    test, train = pairs[::7], [pair for row, pair in enumerate(pairs) if row % 7]
    losses: list[float] = []
    model = regard.train(
        settings, train, callbacks=[lambda e: losses.append(e.get("loss", 0.0))]
    )
    print(model, f"last validation loss {losses[-1]:.3f}", sep="\n")
    figures = model.evaluate(test, beam=5)["results"][0]
    print(f"exact match on {len(test)} unseen numbers: {figures['exact_match']:.0%}")
    right, wrong = model.score([("CCLVI", "256"), ("CCLVI", "265")])
    print(
        f"log-probability of CCLVI as 256: {right.score:.2f}, as 265: {wrong.score:.2f}"
    )
    [explained] = model.explain([("CCLVI", "256")])
    for token, row in zip(
        explained.target, explained.attention["cross"][0, 0], strict=True
    ):
        print(f"{token!r} attends most to {explained.source[int(row.argmax())]!r}")
    model.save(folder)  # regard translate FOLDER "DCLXVI"
    export.export(Path(folder), "page", Path(f"{folder}.html"))  # open it in a browser
    return model


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["runs/numerals"])
