#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bench/gpu/bundle.sh DIR: puts all that bench/gpu/run.sh needs into DIR, for a machine that has a GPU and a toolkit, and
# no Go, and the same into DIR.tgz, which is less than half as large. On that machine: DIR/run.sh [OUT], or DIR/run.sh --peers
# [OUT] on two GPUs. Needs gcc, for the C library, and LLVM 19, for kernels of another module. DEEPEP, a clone of DeepEP, goes along
# for that run, at DEEPEP_REV (HEAD if it is not set; peers/deepep.sh is for v1.2.1).
set -euo pipefail
[ $# = 1 ] || { echo "usage: bench/gpu/bundle.sh DIR" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath -ldflags=-s"
go build -o "$dir/doorbell" ./cmd/doorbell
go build -o "$dir/measure" ./tools/measure
go test -c -o "$dir/cuda.test" ./internal/device/cuda
go test -c -o "$dir/gpu.test" ./bench/gpu
go test -c -o "$dir/gintest.test" ./internal/gintest
go test -c -o "$dir/moe.test" ./moe
mkdir -p "$dir/examples"
for main in examples/*/main.go; do
	go build -o "$dir/examples/" "./${main%/*}"
done
# And one of a module of another path, whose kernels gpuc compiles there.
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
cp examples/pingpong/main.go go.sum "$outside"
printf 'module example.com/outside\n\ngo 1.26.0\n\nrequire github.com/doorbell-net/doorbell v0.0.0\n\nreplace github.com/doorbell-net/doorbell => %s\n' "$PWD" >"$outside/go.mod"
(
	cd "$outside"
	export GOFLAGS="$GOFLAGS -mod=mod" GOWORK=off
	go run github.com/doorbell-net/doorbell/cmd/gpuc .
	go build -o "$dir/examples/outside" .
)
CGO_ENABLED=1 go build -buildmode=c-shared -o "$dir/libdoorbell.so" ./plugins/libdoorbell
mkdir -p "$dir/bench/gpu/peers" "$dir/peers"
cp bench/gpu/*.cu bench/gpu/*.cuh bench/gpu/*.h "$dir/bench/gpu/"
cp bench/gpu/peers/*.cu "$dir/bench/gpu/peers/"
cp bench/gpu/peers/deepep.sh "$dir/peers/"
if [ -n "${DEEPEP-}" ]; then
	mkdir -p "$dir/deepep"
	git -C "$DEEPEP" archive "${DEEPEP_REV:-HEAD}" | tar -x -C "$dir/deepep"
fi
cp -r include examples/cxx "$dir/"
cp bench/kernels/kernels_gpuc.ptx "$dir/"
cp bench/gpu/run.sh bench/gpu/examples.sh bench/gpu/peers.sh bench/gpu/libraries.sh "$dir/"
tar -C "$dir" -czf "$dir.tgz" .
