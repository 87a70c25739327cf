# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo`, `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN := runs/demo
PICTURES := runs/demo-de-en
RUNS ?= de-en de-en-gru
SENTENCES ?= 50
MINUTES ?= 3
KINDS ?=

.PHONY: help demo test quick mutations attacks faults fuzz page-check docs check format clean

help:
	@echo "make demo       set up, translate German and plot the attention, then train the case task (a minute)"
	@echo "make test       set up and run the tests (7 minutes on two cores)"
	@echo "make quick      a part of them, in less than a minute"
	@echo "make mutations  break the library in many places: which test notices each?"
	@echo "make attacks    answer files that attack the checker of worksheets: which are stopped here?"
	@echo "make faults     kill and fail every file operation of every command: nothing may be lost (an hour)"
	@echo "make fuzz       mutate every kind of file that regard reads (MINUTES=3 KINDS=\"weights card\")"
	@echo "make page-check the page's engine against Python on 50 test sentences (RUNS=\"de-en runs/mine\" SENTENCES=1000)"
	@echo "make docs       write the generated parts of the docs, and build the site into build/site"
	@echo "make check      ruff, pyright, import-linter"
	@echo "make format     format and fix with ruff"
	@echo "make clean      remove the virtual environment"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Regard needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 ..."; exit 2; }
	@echo "== setting up $(VENV) (once; PyTorch is the large part)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY)
	@echo "== German to English with the shipped model de-en, and its attention"
	@$(BIN)/regard diagram de-en "Ein Mann schläft auf einer grünen Bank." --out $(PICTURES)/bench.png
	@$(BIN)/regard diagram de-en "Ich habe gestern ein Buch gekauft, das ich noch nicht gelesen habe." --out $(PICTURES)/book.html
	@echo "== training the preset 'case' into $(RUN)"
	@$(BIN)/regard train case --run $(RUN) --resume
	@echo "== evaluation on held-out sentences"
	@$(BIN)/regard evaluate $(RUN)
	@echo "== two translations"
	@$(BIN)/regard translate $(RUN) "<U> I am a student" "<L> I am a student"
	@echo "== attention diagrams"
	@$(BIN)/regard diagram $(RUN) "<U> I am a student" --out $(RUN)/student.png --overwrite
	@$(BIN)/regard diagram $(RUN) "<U> I am a student" --out $(RUN)/student.html --overwrite

test: $(READY)
	@echo "== running the tests"
	@$(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist worksteal --quick

mutations: $(READY)
	@$(BIN)/python -m tests.mutations

attacks: $(READY)
	@$(BIN)/python -m tests.labs.attacks

faults: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults $(COMMANDS)

fuzz: $(READY)
	@$(BIN)/python -m tests.fuzz $(KINDS) --minutes $(MINUTES)

page-check: $(READY)
	@$(BIN)/python -m tests.page.check $(RUNS) --sentences $(SENTENCES)

docs: $(READY)
	@$(BIN)/python -m tests.stories.generated
	@echo "== building the site into build/site"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@$(BIN)/python -m docs.site

check: $(READY)
	@echo "== ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== pyright"; $(BIN)/pyright
	@echo "== import-linter"; $(BIN)/lint-imports

format: $(READY)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf $(VENV)
