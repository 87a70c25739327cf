"""Train on pairs from Python lists, then evaluate, explain and save: German number words to digits.

python examples/train_from_lists.py            # half a minute on a laptop
"""

import sys

import regard

ONES = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
TENS = "_ zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
SETTINGS = {
    "model": {"kind": "recurrent", "hidden_dim": 64, "embedding_dim": 64},
    "training": {"epochs": 25, "batch_sentences": 16, "learning_rate": 3e-3},
}


def spell(n: int) -> str:
    """56 -> 'sechsundfünfzig'"""
    if n < len(ONES):
        return ONES[n]
    if n < 20:
        return f"{TENS[n - 10][:-3]}zehn"
    if n < 100:
        return (f"{ONES[n % 10]}und" if n % 10 else "") + TENS[n // 10]
    return f"{ONES[n // 100]}hundert" + (spell(n % 100) if n % 100 else "")


def main(folder: str, settings: dict = SETTINGS) -> regard.Translator:
    pairs = [(spell(n), str(n)) for n in range(1000)]
    test, train = pairs[::7], [pair for n, pair in enumerate(pairs) if n % 7]
    losses: list[float] = []
    model = regard.train(settings, train, callbacks=[lambda e: losses.append(e.get("loss", 0.0))])
    print(model, f"last validation loss {losses[-1]:.3f}", sep="\n")
    figures = model.evaluate(test, beam=5)["results"][0]
    print(f"exact match on {len(test)} unseen numbers: {figures['exact_match']:.0%}")
    [explained] = model.explain([("sechsundfünfzig", "56")])
    for token, row in zip(explained.target, explained.attention["cross"][0, 0], strict=True):
        print(f"{token!r} attends most to {explained.source[int(row.argmax())]!r}")
    model.save(folder)  # regard translate FOLDER "dreihundertelf"
    return model


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["runs/numbers"])
