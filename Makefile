# Two commands matter: `make demo` shows it, `make test` proves it. `make help` explains the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup agent build debug test-programs image demo demo-alpine check test test-attack test-theft test-crash test-debian test-floods test-package test-power test-rollout test-full unit e2e record-compat lint fuzz bench bench-boot deb oci doc clean

TARGET := x86_64-unknown-linux-musl
AGENT := target/agent/$(firstword $(subst -, ,$(TARGET)))/mesh-agent
# Tests and the demo take programs of nodes that are built fast, and small enough for emulated nodes; without any optimisation (dev), their
# checks can exceed their time limits there. What is installed has the profile `agent`.
AGENT_PROFILE ?= lab
# The lab makes network namespaces and taps. What root runs is built before, by the user, who builds in the same folder again.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo --preserve-env=PATH,HOME)
KEEP ?=
NODES ?= 1000
KILLS ?= 500
FLOOD_SECONDS ?= 600
ATTEMPTS ?= 1000
SEED ?=
SECONDS := 60
# Most integration tests wait for timers and other programs most of the time.
TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n < 5 ? 5 : n)))
BASE ?= HEAD
# The racks of demo and test-debian have profiles that site.toml does not have.
DEBIAN_RACK := --memory 2048 --set profiles.debian.image=debian-12 --set 'profiles.debian.overlays=["base", "agent", "ssh", "motd"]'
ONLY ?=
# For record-compat: the folder with another version's meshd and mesh-agent, and the folder to write.
PROGRAMS ?=
OUT ?= target/compat
FUZZ_TARGETS := $(notdir $(basename $(wildcard tests/fuzz/fuzz_targets/*.rs)))

help: ## Shows this
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 14

setup: ## Installs what building, testing, measuring and the demo need (Debian packages, the Rust target of the agent)
	@.ci/setup test bench

agent: ## Builds the static programs of nodes into target/agent/ARCH: mesh-agent and stage1; no other build writes there
	@.ci/setup
	@echo "build: mesh-agent, stage1 (static)"
	@cargo build --quiet --locked --package meshd --profile $(AGENT_PROFILE) --no-default-features --bin mesh-agent --target $(TARGET)
	@cargo build --quiet --locked --package meshd-stage1 --profile $(AGENT_PROFILE) --bin stage1 --target $(TARGET)
	@install -s -D -m 755 -t $(dir $(AGENT)) $(addprefix target/$(TARGET)/$(AGENT_PROFILE:dev=debug)/,mesh-agent stage1)

build image bench-boot: AGENT_PROFILE = agent
build: agent ## Builds target/release/meshd, and the agent
	@echo "build: meshd"
	@cargo build --quiet --locked --package meshd --release --bin meshd

# The programs that tests and the demo run.
debug:
	@.ci/setup
	@echo "build: meshd"
	@cargo build --quiet --locked --package meshd --bin meshd

test-programs:
	@.ci/setup test
	@echo "build: tests"
	@cargo test --quiet --locked --lib --bins --test integration --no-run

image: build ## Builds the image alpine-lab into .lab/blobs, once
	@target/release/meshd lab image

demo: ## Boots one BIOS and one UEFI machine to online with Alpine; then one becomes a Debian node (KEEP=1 leaves the rack up)
	@.ci/setup
	@$(MAKE) --no-print-directory agent debug
	@target/debug/meshd lab image $(DEBIAN_RACK)
	@$(AS_ROOT) target/debug/meshd lab demo $(DEBIAN_RACK) --profile debian $(if $(KEEP),--keep)

demo-alpine: ## The same without Debian, whose image takes some minutes, once: one machine gets another profile
	@.ci/setup
	@$(MAKE) --no-print-directory agent debug
	@target/debug/meshd lab image
	@$(AS_ROOT) target/debug/meshd lab demo $(if $(KEEP),--keep)

check: ## The inner loop: formatting, clippy and unit tests of the crates that changed (BASE=HEAD)
	@.ci/check $(BASE)

test: lint unit e2e ## Passes all checks and tests but the long ones, end-to-end ones too
	@echo "test: everything passed"

test-crash: ## Kills meshd 500 times under load (KILLS=500, SEED=...) and looks for what it lost; 15 minutes
	@.ci/setup test
	@cargo test --quiet --locked --test integration --no-run
	@$(AS_ROOT) env "PATH=$$PATH" MESHD_CRASH_KILLS=$(KILLS) $(if $(SEED),MESHD_CRASH_SEED=$(SEED)) \
	  cargo test --quiet --locked --test integration crash:: -- --nocapture

test-attack: agent ## Runs each attack test with its defence on (must pass) and disabled (must fail)
	@.ci/setup test
	@.ci/attack $(ONLY)

test-theft: debug ## Attempts to steal boots by ARP 1,000 times in each mode (ATTEMPTS=1000)
	@.ci/setup test
	@cargo test --quiet --locked --test integration --no-run
	@$(AS_ROOT) env "PATH=$$PATH" MESHD_ATTACK_ATTEMPTS=$(ATTEMPTS) \
	  cargo test --locked --test integration attack::arp_theft -- --test-threads=1

test-floods: agent ## Boots four machines during floods of each kind (FLOOD_SECONDS=600); an hour and a half
	@.ci/setup test
	@cargo test --quiet --locked --test floods --no-run
	@target/debug/meshd lab image
	@$(AS_ROOT) env "PATH=$$PATH" MESHD_FLOOD_SECONDS=$(FLOOD_SECONDS) cargo test --quiet --locked --test floods -- --nocapture

test-debian: agent ## Builds Debian roots and boots them: refusals, theft, VMs with GPUs, containers, Slurm on two nodes, a shell of a guest
	@.ci/setup test
	@cargo test --quiet --locked --test debian --test integration --no-run
	@target/debug/meshd lab image $(DEBIAN_RACK) --set profiles.hpc.image=debian-12-hpc --set 'profiles.hpc.overlays=["base", "agent"]'
	@$(AS_ROOT) env "PATH=$$PATH" cargo test --quiet --locked --test debian
	@$(AS_ROOT) env "PATH=$$PATH" MESHD_DEBIAN_GUEST=.lab/debian-guest cargo test --quiet --locked --test integration -- debian_guest root_image

test-rollout: agent ## Rolls generations out over six machines in QEMU, finds a bad one among 16, and loses a node with a container
	@.ci/setup test
	@cargo test --quiet --locked --test rollout --no-run
	@target/debug/meshd lab image
	@$(AS_ROOT) env "PATH=$$PATH" cargo test --quiet --locked --test rollout

test-power: agent ## Powers machines in QEMU on by BMCs that lie, and finds a slow boot path; 10 minutes
	@.ci/setup test
	@cargo test --quiet --locked --test power --no-run
	@target/debug/meshd lab image
	@$(AS_ROOT) env "PATH=$$PATH" cargo test --quiet --locked --test power -- --test-threads=2

test-package: deb ## Installs the package into a clean Debian with systemd, boots a machine from it, upgrades and purges it
	@target/debug/meshd lab image 2>/dev/null || { cargo build --quiet --locked --package meshd --bin meshd && target/debug/meshd lab image; }
	@$(AS_ROOT) .ci/test-package

test-full: test test-attack test-crash test-debian test-rollout test-power test-package test-floods ## Passes `make test` and everything that takes too long for it; three hours
	@echo "test-full: everything passed"

unit: ## Unit, property and integration tests: minutes once built
	@.ci/setup test
	@$(MAKE) --no-print-directory agent test-programs
	@echo "test: unit and property tests"
	@cargo test --quiet --locked --lib --bins
	@cargo test --quiet --locked --doc
	@echo "test: integration tests"
	@cargo test --quiet --locked --test integration --no-run
	@target/debug/meshd lab image
	@$(AS_ROOT) env "PATH=$$PATH" cargo test --quiet --locked --test integration -- --test-threads=$(TEST_THREADS)

e2e: agent ## Real firmware, real Alpine: boots whole racks in QEMU
	@.ci/setup test
	@echo "test: end to end"
	@cargo test --quiet --locked --test e2e --no-run
	@target/debug/meshd lab image
	@$(AS_ROOT) env "PATH=$$PATH" cargo test --locked --test e2e -- --test-threads=2

record-compat: ## Records a site, a backup and answers of another version (PROGRAMS=FOLDER, OUT=target/compat); see tests/compat
	@[ -x "$(PROGRAMS)/meshd" ] || { echo 'PROGRAMS=FOLDER must name a folder with meshd and mesh-agent of the other version' >&2; exit 2; }
	@.ci/setup test
	@cargo test --quiet --locked --test integration --no-run
	@rm -f target/messages
	@$(AS_ROOT) env "PATH=$$PATH" MESHD_TEST_PROGRAMS=$(abspath $(PROGRAMS)) MESHD_COMPAT_OUT=$(abspath $(OUT)) \
	  MESHD_RECORD=$(abspath target/messages) cargo test --quiet --locked --test integration -- compat::record

lint: ## Formatting, clippy, licences, and the agent without the server
	@.ci/setup lint
	@echo "lint: formatting, clippy, licences"
	@cargo fmt --check
	@cargo clippy --quiet --locked --all-targets -- -D warnings
	@cargo clippy --quiet --locked --package meshd --test e2e --test floods --test debian --test rollout --test power -- -D warnings
	@cargo clippy --quiet --locked --package meshd --no-default-features --lib --bin mesh-agent -- -D warnings
	@cargo deny --log-level error check licenses bans sources

fuzz: ## Fuzzes each parser of network bytes for SECONDS (60), beginning with the corpus in the tree
	@.ci/setup fuzz
	@mkdir -p $(addprefix target/fuzz/,$(FUZZ_TARGETS))
	@for target in $(FUZZ_TARGETS); do \
	  echo "fuzz: $$target, $(SECONDS) s"; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir tests/fuzz --sanitizer none "$$target" "target/fuzz/$$target" \
	    "tests/fuzz/corpus/$$target" -- -max_total_time=$(SECONDS) -max_len=4096 -rss_limit_mb=1024 -verbosity=0; \
	done
	@echo "fuzz: nothing found in $(words $(FUZZ_TARGETS)) targets, $(SECONDS) s each"

bench: ## Measures meshd beside its peers, and a boot storm (NODES=1000); docs/performance.md explains every row
	@.ci/setup bench
	@cargo bench --quiet --locked --bench chain
	@cargo bench --quiet --locked --bench engines
	@$(AS_ROOT) env "PATH=$$PATH" cargo bench --quiet --locked --bench peers
	@$(AS_ROOT) env "PATH=$$PATH" cargo bench --quiet --locked --bench storm -- --nodes $(NODES)
	@echo "bench: all rows are above; docs/performance.md says what they mean"

bench-boot: image ## Measures power-on to online: Alpine beside stock Alpine netboot, Debian beside LTSP
	@.ci/setup bench-boot
	@$(AS_ROOT) env "PATH=$$PATH" cargo bench --quiet --locked --profile dev --bench boot

deb: ## Builds the Debian package target/deb/meshd_VERSION_amd64.deb
	@.ci/setup deb
	@.ci/deb

oci: deb ## Builds the OCI image layout target/oci from the Debian package
	@.ci/setup oci
	@$(AS_ROOT) .ci/oci

doc: ## Builds the API documentation
	@cargo doc --quiet --locked --no-deps
	@echo "doc: target/doc/meshd/index.html"

clean: ## Removes what was built, the lab's files included
	@rm -rf target .lab
