# Everything a developer runs. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test run deb test-system test-stories bench lock clean
STORY ?= xid

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is needed (Debian packages, .venv from the lock); leaves .venv/bin/bandog
	@packaging/setup

demo: setup ## the real daemon against a simulated host, a minute at most (STORY=xid|dying-gpu)
	@.venv/bin/python tests/demo $(STORY)

test: setup ## every test that needs no virtual machine, the linters included
	.venv/bin/python -m pytest

run: setup ## the daemon in the foreground on this machine: observe, real /dev/kmsg, files in .cache/run
	@mkdir -p .cache/run/etc .cache/run/run && install -d -m 700 .cache/run/state
	@[ -e .cache/run/etc/bandog.yaml ] || cp packaging/bandog.yaml .cache/run/etc/
	.venv/bin/bandog run --observe --config .cache/run/etc --state .cache/run/state --runtime .cache/run/run

deb: ## dist/*.deb for Debian 12 and 13
	packaging/need roots
	packaging/build-deb bookworm
	packaging/build-deb trixie

test-system: setup ## .deb, lintian, and the lab's scenarios in virtual machines
	packaging/need roots lab
	.venv/bin/python -m tests.lab

test-stories: ## whole stories in the lab (none yet)
	@echo "test-stories: no story stands yet"

bench: setup ## what the budgets of DESIGN.md 12 come to on this machine
	.venv/bin/python tests/bench

lock: ## write the locked, hashed requirements anew
	packaging/lock

clean: ## remove everything that the targets made, caches included
	rm -rf .venv .cache dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/lab/.cache
