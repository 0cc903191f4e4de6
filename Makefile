# Targets of agentmbx. `make` alone lists them.
# Pure Go: no cgo anywhere but under the race detector, which needs a C compiler.

GO         ?= go
FUZZTIME   ?= 5s
STORE      ?= ./data
STATICCHECK = $(GO) tool -modfile=.ci/tools/go.mod staticcheck
TEST_TIMEOUT    ?= 10m
TEST_SKIP       ?=
RACE_TIMEOUT    ?= 15m
TORTURE_TIMEOUT ?= 30m

export CGO_ENABLED = 0

.DEFAULT_GOAL := help
.PHONY: help run build test race fuzz bench bench-host bench-backup bench-desk bench-accounts docs-tui torture lint vet fmt staticcheck check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

build: ## build the static binary bin/agentmbx
	$(GO) build -trimpath -o bin/agentmbx ./cmd/agentmbx

run: build ## build, then serve a relay on the store ./data (STORE=DIR)
	mkdir -p $(STORE) && chmod 700 $(STORE)
	bin/agentmbx relay serve --store-dir $(STORE)

# -skip takes no test away when TEST_SKIP is empty.
test: ## run every test, but for those that TEST_SKIP matches; needs nothing but Go
	$(GO) test -skip '$(TEST_SKIP)' -timeout $(TEST_TIMEOUT) ./...

# The detector watches our own packages, the standard library and what we import,
# but for these: SQLite's C code turned into Go with the C library and memory under
# it, scrypt, and the table that go-runewidth computes whenever a process starts.
# They took most of the time; a race on memory that only they touch is not found.
# The driver modernc.org/sqlite has to stay: it holds copies of generic code of
# the standard library (sync.Map, atomic.Pointer), of which the linker takes one for
# all, so that without the detector in it there are races reported where none is.
# Before a package joins the list, look at it with `go tool nm` for such copies: libc
# has one, of os's pointer to a directory being read; the linker takes os's own.
RACE_UNWATCHED = modernc.org/sqlite/lib modernc.org/libc modernc.org/memory golang.org/x/crypto/scrypt github.com/mattn/go-runewidth

# Kill runs look at what a dead child left: they run without the detector, in
# torture. A process that ends waits a tenth of a second for races, not the whole
# one that is usual: scripts start hundreds.
race: export GORACE ?= atexit_sleep_ms=100
race: ## run the tests under the race detector, but for the kill runs (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race $(RACE_UNWATCHED:%=-gcflags=%=-race=false) -skip 'Crash|Torture' -timeout $(RACE_TIMEOUT) ./...

fuzz: ## fuzz every Fuzz function for FUZZTIME each (default 5s)
	@GO=$(GO) FUZZTIME=$(FUZZTIME) .ci/fuzz

bench: ## measure a relay, then a host, then backups, the desk, accounts
	$(GO) run ./relay/bench
	$(MAKE) bench-host
	$(MAKE) bench-backup
	$(MAKE) bench-desk
	$(MAKE) bench-accounts

bench-host: ## measure a host: sealing, pushing, draining, its memory
	$(GO) test -run '^$$' -bench 'Host(Seal|Open|Row)' ./relay/host
	$(GO) test -run '^$$' -bench 'Host(Push|Drain|Memory)' -benchtime 3x -timeout 30m ./relay/host

bench-backup: export MBX_BENCH_MIB ?= 1024
bench-backup: ## measure backup, verify, drill and restore of a store of MBX_BENCH_MIB (default 1024)
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 30m ./backup/...

bench-desk: ## measure the desk's lists on a million items, and what a screen costs to draw
	$(GO) test -run '^$$' -bench Desk -benchtime 100x -timeout 30m ./admin
	$(GO) test -run '^$$' -bench View ./tui

bench-accounts: ## measure account tokens, the hop of an account's host, and the deny list
	$(GO) test -run '^$$' -bench Verify ./relay/authority/jwks
	$(GO) test -run '^$$' -bench AccountsHop ./relay
	$(GO) test -run '^$$' -bench Denied ./relay/store/sqlite

torture: export MBX_TORTURE_ROUNDS ?= 20
torture: ## kill relays, hosts, backups and restores at every step, MBX_TORTURE_ROUNDS times (default 20)
	$(GO) test -count=1 -run 'Torture|Crash' -timeout $(TORTURE_TIMEOUT) ./admin/... ./backup/... ./cmd/... ./relay/... ./tui/...

docs-tui: ## make docs/tui.md from the screens
	$(GO) test -run TestDocsAreFresh ./tui -update

vet: ## go vet
	$(GO) vet ./...

fmt: ## fail when a file is not gofmt's
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "run gofmt -w on:"; echo "$$out"; exit 1; fi

staticcheck: ## staticcheck, at the version pinned in .ci/tools
	$(STATICCHECK) ./...

lint: vet fmt staticcheck ## vet, gofmt and staticcheck

check: test lint race ## what a change must pass
