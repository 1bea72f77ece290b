# The two commands a newcomer needs: `make results/table3.csv` and `make test`. Everything else is optional.
.DEFAULT_GOAL := help
PYTHON ?= python3
SCALE ?= mini
CONFIG ?=
SEEDS ?=
CHECKPOINTS ?=
REMOTE ?=
ENTRIES ?=
# Further packages, any of slurm and s3; what .venv was made with is remembered.
EXTRAS ?= $(shell cat .venv/extras 2>/dev/null)
BIN := .venv/bin
INSTALLED := .venv/installed
# A file of your own rows, for tools that take one and nothing else of CONFIG.
OWN = $(if $(filter-out own=%,$(CONFIG)),$(error make $@ takes only own=FILE in CONFIG; give SCALE, SEEDS and CHECKPOINTS \
by themselves))$(patsubst own=%,--own %,$(CONFIG))
STORED := $(if $(ENTRIES),records $(ENTRIES))
export PATH := $(CURDIR)/$(BIN):$(PATH)
# One word for the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'

.PHONY: help install test docs regress lint format lock plan pretrain rehearse report paper status findings evidence remote pull push verify clean

## Start here
help: ## show this list
	@sed -nE 's/^## (.*)/\n\1/p; s/^([a-z%/.-]+):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

# Bytecode is compiled once here: without it the first imports take far longer.
$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Python 3.11 to 3.13 is needed, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/# via/p' requirements.lock > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement .venv/uv.txt
	$(BIN)/uv pip sync --quiet --require-hashes --compile-bytecode --python $(BIN)/python requirements.lock $(EXTRAS:%=requirements-%.lock)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m flexround.quant.native
	echo $(EXTRAS) > .venv/extras
	touch $@

ifneq ($(strip $(EXTRAS)),$(strip $(shell cat .venv/extras 2>/dev/null)))
$(INSTALLED): FORCE
endif

install: $(INSTALLED) ## create .venv from requirements.lock: 1 minute, 7 GB (EXTRAS="slurm s3" for clusters, object storage)

results/real%: SCALE = real
results/%: $(INSTALLED) FORCE ## compute one file: results/table3.csv takes 4 to 12 minutes (SCALE=paper SEEDS=3 CHECKPOINTS=resnet18-brecq)
	snakemake --cores all $@ --config scale=$(call quoted,$(SCALE)) \
		$(if $(SEEDS),seeds=$(call quoted,$(SEEDS))) $(if $(CHECKPOINTS),checkpoints=$(call quoted,$(CHECKPOINTS))) $(CONFIG)

FORCE:

test: $(INSTALLED) ## run the tests in two processes: 5 minutes
	python tests/halves.py

plan: $(INSTALLED) ## show what a table costs before anything runs (TABLE=3 or ALL=1, SCALE=paper CHECKPOINTS=llama-7b SEEDS=1)
	python -m flexround.tools.plan --scale $(call quoted,$(SCALE)) $(OWN) \
		$(if $(ALL),--all,$(if $(FIGURE),--figure $(FIGURE),--table $(or $(TABLE),3))) \
		$(if $(SEEDS),--seeds $(call quoted,$(SEEDS))) $(if $(CHECKPOINTS),--checkpoints $(call quoted,$(CHECKPOINTS)))

## Read results
report: $(INSTALLED) ## write all results as one HTML page, results/report.html: seconds (SCALE=real)
	python -m flexround.tools.report --scale $(call quoted,$(SCALE)) $(OWN) --out results/report.html

paper: $(INSTALLED) ## write all results as one PDF, results/paper.pdf: seconds; needs LaTeX
	python -m flexround.tools.report --scale $(call quoted,$(SCALE)) $(OWN) --out results/paper.tex
	cd results && rm -f paper.aux paper.out paper.toc && for run in 1 2; do SOURCE_DATE_EPOCH=0 FORCE_SOURCE_DATE=1 pdflatex -halt-on-error -interaction=nonstopmode \
		paper.tex > /dev/null || { tail -n 20 paper.log; exit 1; }; done
	cd results && rm -f paper.aux paper.log paper.out paper.toc

docs: $(INSTALLED) ## build the site in site/: 1 minute; a broken link is an error
	sphinx-build -q -W --keep-going -n -c docs -d site/.doctrees . site
	cp site/README.html site/index.html

## Check and store results
regress: $(INSTALLED) ## recompute cells of 15 tables and compare them with results/reference: 4 minutes (ALL=1: all computed tables)
	$(if $(ALL)$(filter mini,$(SCALE)),,$(error the runs of regress are those of mini; give ALL=1 with SCALE=$(SCALE)))
	$(if $(ALL),,snakemake --cores all regress --config scale=mini)
	python -m flexround.tools.regress --scale $(call quoted,$(SCALE)) $(if $(ALL),--all)

verify: $(INSTALLED) ## compare every result with the sha256 in its manifest
	python -m flexround.tools.verify --scale $(call quoted,$(SCALE))

# DVC remembers which files it has looked at. A killed run leaves half a list, and the next one then skips the rest and
# reports success: so each pull and push starts with an empty list, in a directory of its own.
export DVC_SITE_CACHE_DIR := $(CURDIR)/.dvc/tmp/site

UNKNOWN_REMOTE := no remote is known to this clone: make pull REMOTE=DIRECTORY-OR-URL of who published results; \
what is published in git, results/reference, make report shows without

remote: $(INSTALLED)
	@rm -rf $(DVC_SITE_CACHE_DIR)
ifneq ($(REMOTE),)
	$(if $(filter pull,$(MAKECMDGOALS)),$(if $(findstring ://,$(REMOTE))$(wildcard $(REMOTE)),,$(error REMOTE=$(REMOTE): no such directory)))
	dvc remote add --local --force --default storage $(REMOTE)
	dvc remote modify --local storage verify true
endif

# make before 4.4 exports nothing to $(shell).
pull: remote ## fetch published results (REMOTE=directory or URL, ENTRIES="task@squad table@12"; docs/storage.md)
	$(if $(shell PATH='$(PATH)' dvc config core.remote 2>/dev/null),,$(error $(UNKNOWN_REMOTE)))
	dvc fetch $(STORED)
	python -m flexround.tools.dvc_cache $(STORED)
	dvc checkout $(STORED)
	python -m flexround.tools.snakemake_records --scale $(call quoted,$(SCALE)) restore $(STORED)
	@# Sources are not stored: without them Snakemake would take all that was made of them for stale.
	snakemake --cores all --until fetch --config scale=$(call quoted,$(SCALE))
	python -m flexround.tools.verify --scale $(call quoted,$(SCALE))

push: remote verify ## publish complete results, all or ENTRIES="table@12"; then commit dvc.lock
	$(if $(shell grep -F $(call quoted,results/$(basename $(notdir $(SCALE)))/) dvc.yaml),,$(error dvc.yaml stores nothing of the \
	scale $(SCALE), so nothing of it would be published; leave SCALE out, or write a dvc.yaml for it))
	@snakemake --dry-run $(if $(ENTRIES),$$(python -m flexround.tools.snakemake_records goals $(ENTRIES))) --config scale=$(call quoted,$(SCALE)) | tee /dev/stderr | grep -q "Nothing to be done" \
		|| { echo "not published: make what is listed above first (snakemake --cores all)" >&2; exit 1; }
	python -m flexround.tools.snakemake_records --scale $(call quoted,$(SCALE)) save
	dvc commit --force --no-relink $(STORED)
	dvc push $(STORED)

clean: ## delete all computed results and downloads; .venv stays
	find results -mindepth 1 -maxdepth 1 ! -name reference -exec rm -rf {} +
	rm -rf logs .jobs .state .snakemake

## Change the project
lint: $(INSTALLED) ## check with ruff, snakefmt and mypy: 1 minute
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	mypy

format: $(INSTALLED) ## apply the formatters
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

lock: ## pin the newest versions of all packages
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		--extra dev --constraint requirements-s3.in --upgrade --custom-compile-command "make lock" \
		--output-file requirements.lock pyproject.toml
	constraints="--constraint requirements.lock"; for extra in slurm s3; do \
		uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
		$$constraints --upgrade --custom-compile-command "make lock" \
		--output-file requirements-$$extra.lock requirements-$$extra.in || exit 1; \
		constraints="$$constraints --constraint requirements-$$extra.lock"; done
	$(BIN)/python tests/environment_yml.py > environment.yml

rehearse: $(INSTALLED) ## run the jobs of the paper's scale, all or TABLE=7, on small files: 16 minutes with SEEDS=1 (docs/run-at-scale.md)
	snakemake --cores $(or $(CORES),all) \
		$(if $(TABLE),results/rehearsal/table$(TABLE).csv,results/rehearsal/metrics.json results/rehearsal/report.html) \
		$(if $(GPU),--resources gpu=$(GPU) --set-resources $(foreach rule,finetune gate reconstruct select evaluate,$(rule):gpu=1)) \
		--config scale=rehearsal $(if $(SEEDS),seeds=$(call quoted,$(SEEDS))) $(CONFIG)

pretrain: $(INSTALLED) ## train mini's pretrained networks again, with their pins (CHECKPOINTS=...)
	snakemake --cores all pretrain --config scale=worlds/pretraining.yaml $(if $(CHECKPOINTS),checkpoints=$(call quoted,$(CHECKPOINTS)))
	python worlds/networks.py $(if $(CHECKPOINTS),--checkpoints $(call quoted,$(CHECKPOINTS)))

status: $(INSTALLED) ## write the status of all tables and its figure into docs/results.md
	python -m flexround.tools.readme status

findings: $(INSTALLED) ## write the table of findings into README.md
	python -m flexround.tools.readme findings

evidence: $(INSTALLED) ## write the tables of docs/results.md with numbers of the scale real
	python -m flexround.tools.readme evidence
