"""Which page stands where. A page that is neither here nor generated fails `tests/stories/test_site.py`.

Paths are those of the repository; words after a path are its title in the list.
"""

SECTIONS: dict[str, list[str]] = {
    "Start": [
        "docs/start/five-minutes.md",
        "docs/start/your-data.md",
        "docs/large-data.md",
        "docs/little-data.md",
        "docs/translation.md",
        "docs/python.md",
        "docs/pretraining.md",
    ],
    "Understand": [
        "docs/understand/path.md",
        "docs/understand/scores.md",
        "docs/understand/normalisers.md",
        "docs/understand/positions.md",
        "docs/understand/heads.md",
        "docs/understand/long.md",
        "docs/understand/decoding.md",
        "docs/understand/training.md",
        "docs/attention.md",
        "docs/word-order.md",
        "docs/understand/gallery.md",
    ],
    "Labs": [
        "docs/labs.md",
        "labs-live.md",
        "labs-list.md",
        "docs/labs/labs.md Report of all labs",
    ],
    "Notebooks": ["notebooks"],
    "Compare": ["docs/comparing.md", "docs/compare/honestly.md", "docs/papers.md"],
    "Results": ["results/README.md", "results/speed.md", "results/robustness.md"],
    "Deploy": [
        "docs/page.md",
        "docs/serving.md",
        "docs/deploy/export.md",
        "docs/many-devices.md",
        "docs/many-machines.md",
        "docs/speed.md",
    ],
    "Extend": ["docs/extending.md", "CONTRIBUTING.md"],
    "Teach": ["docs/teach.md"],
    "Coming from": [
        "docs/coming-from/joeynmt.md",
        "docs/coming-from/fairseq.md",
        "docs/coming-from/opennmt-py.md",
        "docs/coming-from/hugging-face.md",
        "docs/coming-from/course-notebooks.md",
    ],
    "Reference": [
        "reference/cli.md",
        "reference/settings.md",
        "reference/api.md",
        "docs/glossary.md",
    ],
    "About": [
        "docs/about/not-for.md",
        "docs/about/citing.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ],
}

# Pages below another one: all in a folder of the site that are not listed above.
BELOW = {"results/README.md": "results", "reference/api.md": "reference/api"}
