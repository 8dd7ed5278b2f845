# Everything a developer does, and the same for CI. `make help` lists it; the first use sets up .venv and builds.
# Needs CPython >= 3.11 with venv, Rust >= 1.95 with clippy and rustfmt, and the package registries.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin

# One environment for cargo and maturin, so that neither throws away what the other one has built.
export PATH := $(BIN):$(PATH):$(HOME)/.cargo/bin
export PYO3_PYTHON := $(BIN)/python
export PYO3_BUILD_EXTENSION_MODULE := 1

# The libraries that `make bench-peers` compares with have an environment of their own.
PEERS := .cache/peers
GATEWAY_PEERS := .cache/gateway-peers
# What examples/litellm runs in: LiteLLM's proxy pins other versions of what we use.
LITELLM := .cache/litellm
export CRITERION_HOME := $(CURDIR)/.cache/criterion

THREADS ?= 8

# Seconds for each fuzz target, and the tool that runs them.
FUZZ_SECONDS ?= 30
CARGO_FUZZ := 0.13.2

# What releases are made for, and the tools of releases. zig knows the symbols of old glibcs, so no old system is needed.
TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
GLIBC ?= 2_28
ZIGLANG := 0.17.1
CARGO_ABOUT := 0.9.3
CARGO_DENY := 0.20.2
PIP_AUDIT := 2.10.1

RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock) $(shell find rust bindings -name '*.rs' -o -name Cargo.toml)

.PHONY: api-freeze audit notices test-parallel test-portable check-sdist check-wheels sdist wheels docs fuzz loom help demo serve-demo test lint bench-core bench-gateway bench-peers bench-rust bench-python bench-memory bench-events bench-policy bench-cython bench-sidecar e2e soak wheel build clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## random against prefix-aware routing on simulated workers: a table, then exit 0
	@trunkline demo $(DEMO_FLAGS)

serve-demo: build ## the same, then keep gateway and workers running until Ctrl-C
	@trunkline demo --keep $(DEMO_FLAGS)

test: build $(LITELLM)/installed ## every check: formats, lints, types, cargo tests, pytest
	@python tests/run.py

test-parallel: build ## the in-process tests, each by eight threads at a time (THREADS=)
	@python -m pytest --parallel-threads=$(THREADS) -m "not slow and not thread_unsafe" tests/unit tests/property tests/concurrency

lint: build ## formats, lints and types only
	@python tests/run.py --lint

bench-core: build ## cost of look-ups and decisions from Python on a full index
	@trunkline bench core

bench-peers: build $(PEERS)/installed ## the same beside other libraries; writes benches/results/core.json
	@PYTHONPATH="$(CURDIR)/python:$$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		$(PEERS)/bin/python -m trunkline bench core --peers --output benches/results/core.json
	@python benches/render.py

bench-rust: build ## the core alone, with criterion; writes benches/results/rust.json
	@rm -rf $(CRITERION_HOME)
	cargo bench --locked -p trunkline-benches --bench core -- $(BENCH_FLAGS)
	@python benches/collect.py rust && python benches/render.py

bench-python: build ## cost of single calls from Python beside an empty one
	@python -m pytest benches/python --benchmark-timer=time.thread_time --benchmark-disable-gc \
		--benchmark-calibration-precision=2000 --benchmark-columns=median,iqr,rounds,iterations

bench-cython: build ## what the C table and Cython without the GIL cost beside the same call in Rust
	cargo run --release --locked --quiet -p trunkline-capi --example call_cost
	@PYTHONPATH=. python benches/python/cython_calls.py

# On one core: otherwise chance decides for each pair of threads whether it pays for waking another core.
bench-sidecar: build ## a question to the sidecar beside a bare echo on a Unix socket, from Rust and from Python
	cargo build --release --locked --quiet -p trunkline-sidecar --example round_trip
	@taskset -c 0 target/release/examples/round_trip
	@taskset -c 0 python benches/python/sidecar_calls.py target/release/examples/round_trip

bench-memory: build ## 10 million prompts through a router of 64 MiB; writes benches/results/memory.json
	@mkdir -p .cache
	cargo run --release --locked --quiet -p trunkline-benches --bin memory > .cache/memory.json; \
		python benches/collect.py memory < .cache/memory.json && python benches/render.py

bench-policy: build ## the policy's pass lines in simulated fleets (TRACES= their folder); writes benches/results/policy.json
	@mkdir -p .cache
	@trunkline bench policy --json $(if $(TRACES),--traces $(TRACES)) > .cache/policy.json; \
		python benches/collect.py policy < .cache/policy.json && python benches/render.py

bench-events: build ## what workers' events cost, and a request that is matched with them; writes benches/results/events.json
	@mkdir -p .cache
	cargo run --release --locked --quiet -p trunkline-benches --bin events > .cache/events.json
	@trunkline bench exact --output .cache/exact.json
	@python benches/collect.py events < .cache/events.json && python benches/render.py

bench-gateway: build $(GATEWAY_PEERS)/installed ## the gateway beside nginx and other routers; writes benches/results/gateway.json
	cargo build --release --locked -p trunkline-gateway --examples
	@python benches/gateway/run.py $(BENCH_FLAGS) && python benches/render.py

e2e: build ## real engines behind the gateway: minutes, gigabytes
	@python -m pytest tests/e2e -m slow

soak: build ## ten minutes (SOAK_SECONDS=) of load with workers killed and clients that leave
	@python -m pytest tests/soak -m slow -s

loom: ## every interleaving of the index's version cell, by the loom model checker
	@RUSTFLAGS="--cfg loom" cargo test --release --locked --target-dir target/loom -p trunkline-core --lib loom_tests

test-portable: ## the core's tests as on a CPU without AES
	@RUSTFLAGS="--cfg portable" cargo test --release --locked --target-dir target/portable -p trunkline-core

fuzz: .cache/tools/bin/cargo-fuzz ## every fuzz target for 30 s (FUZZ_SECONDS=) each; needs a nightly compiler and C++
	@set -e; for target in $$(.cache/tools/bin/cargo-fuzz fuzz list --fuzz-dir rust/fuzz); do \
		echo "== fuzz $$target"; \
		PATH="$(CURDIR)/.cache/tools/bin:$$PATH" cargo +nightly fuzz run --fuzz-dir rust/fuzz --target-dir .cache/fuzz \
			$$target -- -max_total_time=$(FUZZ_SECONDS) -dict=rust/fuzz/json.dict; \
	done

.cache/tools/bin/cargo-fuzz:
	cargo install cargo-fuzz --version $(CARGO_FUZZ) --root .cache/tools --locked

docs: build ## docs/settings.md and docs/api.md, from the settings and the package themselves
	@python -m tests.docs.settings_table
	@python -m tests.docs.api_reference

api-freeze: build ## at a release: the public names as they are now become what the next changes are held to
	@python -m tests.docs.surface

wheel: build notices ## the wheel of this machine, in dist/
	@maturin build --release --out dist

wheels: $(VENV)/installed notices ## the wheels of a release, in dist/: abi3 and cp314t, of all TARGETS=, for GLIBC= and newer
	python -m pip install --quiet --disable-pip-version-check ziglang==$(ZIGLANG)
	@set -e; for target in $(TARGETS); do \
		rustup target add $$target; \
		for python in "" "--no-default-features --interpreter python3.14t"; do \
			maturin build --release --locked --zig --compatibility manylinux_$(GLIBC) --target $$target --out dist $$python; \
		done; \
	done
	@$(MAKE) --no-print-directory check-wheels

check-wheels: $(VENV)/installed ## every wheel in dist/: contents, size, ABI, what it needs of the system
	@set -e; for wheel in dist/*.whl; do \
		ls -l $$wheel; \
		TRUNKLINE_WHEEL=$$wheel python -m pytest -q -k wheel tests/packaging/test_wheel.py; \
	done

sdist: $(VENV)/installed notices ## the source with all crates in it, in dist/: it builds without a network
	@.ci/sdist

check-sdist: $(VENV)/installed ## build a wheel of it without network and without cargo's cache
	@.ci/sdist --check

# The second file is of Rust's own library, and of what that is made of: the toolchain brings it.
notices: notices/crates.txt ## licences and notices of what is linked into the wheels, in notices/
	@cp "$$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html" notices/rust-library.html

# Fails for a crate whose licence is not in about.toml. Reads the files of the crates and nothing of the internet.
notices/crates.txt: about.toml about.hbs Cargo.lock .cache/tools/bin/cargo-about
	@mkdir -p $(@D)
	cargo fetch --locked
	.cache/tools/bin/cargo-about generate --frozen --fail --config about.toml --manifest-path bindings/python/Cargo.toml \
		--output-file $@ about.hbs

.cache/tools/bin/cargo-about:
	cargo install cargo-about --version $(CARGO_ABOUT) --features cli --root .cache/tools --locked

# Both ask for lists of known faults on the internet.
audit: .cache/tools/bin/cargo-deny $(VENV)/installed ## licences, sources and known faults of crates and packages (deny.toml)
	@.cache/tools/bin/cargo-deny --locked check licenses bans sources
	@.cache/tools/bin/cargo-deny --locked check advisories
	@python -m pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT)
	@python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"], sep="\n")' > .cache/audited.txt
	@python -m pip_audit --requirement .cache/audited.txt

.cache/tools/bin/cargo-deny:
	cargo install cargo-deny --version $(CARGO_DENY) --root .cache/tools --locked

build: $(VENV)/built ## .venv with the module in it, and the command .venv/bin/trunkline

# Rebuilt when a Rust source changed; Python sources are used where they are.
$(VENV)/built: $(VENV)/installed $(RUST_SOURCES)
	maturin develop --release
	@touch $@

# The extra `dev` of pyproject.toml is the one place that pins tools.
$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("CPython >= 3.11 is needed: make PYTHON=...") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -m venv $(VENV) || { echo "python3 has no venv: apt-get install python3-venv" >&2; exit 1; }
	python -m pip install --quiet --disable-pip-version-check $$(python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])')
	@touch $@

$(PEERS)/installed: benches/requirements-peers.txt
	@$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(LITELLM)/installed: examples/litellm/requirements.txt
	@$(PYTHON) -m venv $(LITELLM)
	$(LITELLM)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# One environment for each: they pin different versions of the same things. A peer that cannot be installed is MISSING.
$(GATEWAY_PEERS)/installed: benches/gateway/requirements.txt
	@sed -n 's/^\([a-z-]*\)==.*/& \1/p' $< | while read requirement name; do \
		$(PYTHON) -m venv $(GATEWAY_PEERS)/$$name && \
		$(GATEWAY_PEERS)/$$name/bin/python -m pip install --quiet --disable-pip-version-check $$requirement || \
		echo "$$requirement could not be installed"; done
	@touch $@

clean: ## throw away what was built
	rm -rf $(VENV) target dist notices .cache .hypothesis .pytest_cache .mypy_cache .ruff_cache python/trunkline/*.so
