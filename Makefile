# SPDX-License-Identifier: Apache-2.0
#
# What CI runs is in .ci/run; targets that it has call it, so that both do the same.

.DEFAULT_GOAL := help
.PHONY: help build test vet lint lockstep race fuzz bench-smoke generate ptx ptxas gpu-bundle arm64 ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build everything, and bin/doorbell where it exists, without cgo
	CGO_ENABLED=0 go build ./...
	@if ls cmd/doorbell/*.go >/dev/null 2>&1; then CGO_ENABLED=0 go build -o bin/doorbell ./cmd/doorbell; fi

test: ## run the tests
	go test ./...

vet: ## run go vet
	.ci/run vet

lint: ## gofmt, the rules of device code, the house rules, staticcheck
	.ci/run gofmt gpuvet house staticcheck

lockstep: ## run all kernels in warps of 32 lanes on the CPU (needs gcc)
	.ci/run lockstep

race: ## run the in-process tests under the race detector (needs gcc)
	.ci/run race

fuzz: ## run every fuzz function for a few seconds
	.ci/run fuzz

bench-smoke: ## run each benchmark once and see that it verifies its bytes
	.ci/run bench

generate: ## write generated files anew, THIRD_PARTY.md among them
	go generate ./...
	go run ./tools/thirdparty

ptx: ## compile all kernels to PTX anew, and to cubins (needs LLVM 19 and `make ptxas`)
	go run ./tools/ptx

ptxas: ## get the ptxas that makes cubins, if it is not there (needs pip)
	.ci/run ptxas

gpu-bundle: ## fill DIR with what bench/gpu/run.sh needs on a machine with a GPU (make gpu-bundle DIR=...)
	bench/gpu/bundle.sh "$(DIR)"

arm64: ## build and vet for linux/arm64
	CGO_ENABLED=0 GOARCH=arm64 go build ./...
	CGO_ENABLED=0 GOARCH=arm64 go vet ./...

ci: ## all that CI runs
	.ci/run
