# Every target is one script, so that people and CI run the same thing. Needs Python >= 3.11 and make, nothing else.
.PHONY: setup demo test check bench clean

setup:  ## create .venv with everything that demo and tests need
	@scripts/setup

demo: setup  ## the whole product on a real model, in a few minutes
	@scripts/demo

test: setup  ## style, types and all tests
	@scripts/test

check: setup  ## style and types only
	@scripts/check

bench: setup  ## the benchmarks, each with its table
	@scripts/bench

clean:
	rm -rf .venv demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
