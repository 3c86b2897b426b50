# What there is to do: make help

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

GO  ?= go
NPM ?= npm

VERSION   ?= $(shell cat VERSION)
REVISION  := $(shell git rev-parse --verify HEAD 2>/dev/null || echo unknown)
BRANCH    := $(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)
# Of the commit and not of the build, so that the same sources give the same bytes.
BUILDDATE := $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
STAMP     := github.com/prometheus/common/version
LDFLAGS   := -s -w -X $(STAMP).Version=$(VERSION) -X $(STAMP).Revision=$(REVISION) \
	-X $(STAMP).Branch=$(BRANCH) -X $(STAMP).BuildDate=$(BUILDDATE)

# Tests that load kernel programs and measure run one package at a time, on a machine that does nothing else.
KERNEL_TESTS := ./ebpfspy/... ./internal/perfevent/... ./agent/...
TEST_FLAGS   ?=
# Flags of test/kernels, such as -suites trixie, -run PATTERN or -v.
KERNELS_FLAGS ?=
FUZZTIME     ?= 10s

##@ Use

.PHONY: run
run: build ## Build and start the agent with no configuration; the page is at http://127.0.0.1:4041
	bin/spanflame run

.PHONY: build
build: ## Build bin/spanflame; needs Go only
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/spanflame ./cmd/agent

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin

##@ Test

.PHONY: test
test: test-deps test-pythons build pyroscope-server test-unit test-kernel test-e2e ## Install what tests need (as root), then run all Go tests, on the real kernel too

.PHONY: test-deps
test-deps: ## Install the Debian packages that the tests need, those that are missing
	scripts/test-deps.sh

.PHONY: test-pythons
test-pythons: ## Unpack the CPythons that the tests profile into .cache/pythons, those that are missing
	scripts/test-pythons.sh

.PHONY: test-unit
test-unit: ## Tests that need no quiet machine
	$(GO) test $(TEST_FLAGS) $$($(GO) list ./... | grep -vxFf <($(GO) list $(KERNEL_TESTS) ./test/...))

.PHONY: test-kernel
test-kernel: ## Tests of the samplers on this kernel; root
	$(GO) test -count=1 -p 1 $(TEST_FLAGS) $(KERNEL_TESTS)

.PHONY: test-e2e
test-e2e: build ## Tests of the whole agent: truth, end to end, a real Pyroscope, the page; root
	$(GO) test -count=1 -p 1 -timeout 20m $(TEST_FLAGS) ./test/...

.PHONY: test-kernels
test-kernels: ## The samplers and static programs on Linux 5.10, 6.1, 6.12 and Debian's newest, in QEMU; takes about 10 minutes
	scripts/test-deps.sh kernels
	$(GO) run ./test/kernels $(KERNELS_FLAGS)

.PHONY: test-kernels-arm64
test-kernels-arm64: ## The same on an arm64 kernel
	scripts/test-deps.sh kernels-arm64
	$(GO) run ./test/kernels -arch arm64 -suites bookworm $(KERNELS_FLAGS)

.PHONY: test-race
test-race: ## The tests of test-unit and test-kernel under the race detector
	$(GO) test -race -short $(TEST_FLAGS) $$($(GO) list ./... | grep -vxFf <($(GO) list $(KERNEL_TESTS) ./test/...))
	$(GO) test -race -short -count=1 -p 1 $(TEST_FLAGS) $(KERNEL_TESTS)

.PHONY: test-ui
test-ui: web/ui/node_modules/.package-lock.json ## Unit tests of the page, and the page in headless Chromium against made-up data; needs Node.js
	cd web/ui && $(NPM) run check && $(NPM) test
	node test/page/run.mjs --mock

.PHONY: fuzz-short
fuzz-short: ## Fuzz every parser for FUZZTIME each
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: bin/golangci-lint ## Vet, format and lint
	bin/golangci-lint run ./...

.PHONY: bench
bench: build ## Measure the agent on this machine and write bench/README.md; root, takes about 6 minutes
	$(GO) run ./bench/report -agent bin/spanflame -out bench/README.md

.PHONY: bench-deps
bench-deps: ## Install the Debian packages that bench-unwind measures, those that are missing, without starting their services
	scripts/test-deps.sh bench

.PHONY: bench-unwind
bench-unwind: build bench-deps ## Measure how many stacks of stock programs are whole and write bench/unwind/README.md; root, takes about 9 minutes
	$(GO) run ./bench/unwind -agent bin/spanflame -out bench/unwind/README.md

.PHONY: bench-offcpu
bench-offcpu: build ## Measure what off-CPU profiling costs threads that switch all the time and write bench/offcpu/README.md; root, takes about 8 minutes
	$(GO) run ./bench/offcpu -agent bin/spanflame -out bench/offcpu/README.md

##@ Generate

.PHONY: generate
generate: generate-bpf ui ## Make the BPF objects (clang-19) and the page (Node.js) anew

.PHONY: generate-bpf
generate-bpf: ## Make the BPF objects and their Go bindings, for amd64 and arm64
	$(GO) generate ./bpf

.PHONY: ui
ui: web/ui/node_modules/.package-lock.json ## Build the page into web/ui/dist
	cd web/ui && $(NPM) run build

.PHONY: generate-check
generate-check: ## Fail if the committed generated files are not what the sources give
	scripts/generate-check.sh

.PHONY: pyroscope-server
pyroscope-server: bin/pyroscope-test ## Build the real Pyroscope for the tests (2 minutes the first time)

##@ Files

bin/pyroscope-test: $(wildcard test/pyroscope/*.go test/pyroscope/go.*)
	test/pyroscope/build.sh $@

bin/golangci-lint: tools/go.mod tools/go.sum
	cd tools && $(GO) build -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

web/ui/node_modules/.package-lock.json: web/ui/package.json web/ui/package-lock.json
	cd web/ui && $(NPM) ci --no-audit --no-fund
	touch $@

.PHONY: help
help: ## This list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ Files/ { next } \
		/^##@ / { printf "\n%s\n", substr($$0, 5); next } \
		/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
