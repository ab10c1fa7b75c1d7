#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [OUT], from a folder that bench/gpu/bundle.sh filled: compiles the twins and the floors, holds our kernels against
# their results on the CPU, runs the C++ programs, counts the stores of a put in both compilers' code, and measures ours, twin
# and floor in turn; then 2, 4 and 8 ranks, as many as there are GPUs, a process each. With SHARE=1 also more ranks than GPUs, all
# of one process on one GPU: a dry run of the same. Rows say how many GPUs their ranks were on. Dispatch and combine come last, with
# limits of their own: one round, since a row is a median of many operations.
# Writes OUT/gpu.jsonl (rows as tools/measure's) and OUT/summary.txt. Needs an NVIDIA GPU, its driver and nvcc; changes no
# setting of the GPU. At most ten minutes on one GPU; LIMIT and MOE_LIMIT are the seconds that measuring may take. Exit: 0 all ran and every byte
# was right, whatever the figures are.
# run.sh --peers [OUT] measures two GPUs instead, beside NCCL, NVSHMEM and DeepEP: see peers.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1-}" = --peers ]; then
	shift
	exec "$here/peers.sh" "$@"
fi
out=${1:-$here/out}
mkdir -p "$out"
cd "$here"
rounds=${ROUNDS:-4}
arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 | tr -d '.')

for t in twins copies ll ht; do
	nvcc -O3 -std=c++17 -arch="$arch" -ptx "bench/gpu/$t.cu" -o "$t.ptx" &
done
nvcc -O3 -std=c++17 -arch="$arch" -o floors bench/gpu/floors.cu -lcuda &
cp include/testdata/calls.cu cxx/
for p in pingpong alltoall calls; do
	nvcc -O3 -std=c++17 -arch="$arch" -I include -o "cxx/$p" "cxx/$p.cu" ./libdoorbell.so -lpthread &
done
for _ in twins copies ll ht floors pingpong alltoall calls; do wait -n; done

{
	nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
	nvcc --version | tail -2 | head -1
	echo "stores to the host's memory in a kernel, plain and ordered, and instructions, after ptxas:"
	for who in kernels_gpuc twins; do
		ptxas -O3 -arch="$arch" "$who.ptx" -o "$who.cubin"
		for kernel in Post PingPong; do
			cuobjdump -sass -fun "$kernel" "$who.cubin" | awk -v who="$who" -v kernel="$kernel" '
				/STG|ST\.E/ { stores++ } /STG.*STRONG\.SYS/ { sys++ } /^ +\/\*[0-9a-f]+\*\/ / { n++ }
				END { printf "  %-13s %-9s %3d stores, %d of them STRONG.SYS, %d instructions\n", who, kernel, stores, sys, n }'
		done
	done
} | tee "$out/summary.txt"

echo "== conformance and differential" | tee -a "$out/summary.txt"
DOORBELL_CUDA_TEST=1 timeout -k 5 120 ./cuda.test -test.run '^TestGPU' -test.v >"$out/conformance.log" 2>&1 || { tail -40 "$out/conformance.log"; exit 1; }
DOORBELL_CUDA_TEST=1 timeout -k 5 60 ./gpu.test -test.run 'TestDifferential|TestLoad|TestProcesses|TestCopies|TestLargePuts' -test.v >"$out/differential.log" 2>&1 || { tail -40 "$out/differential.log"; exit 1; }
DOORBELL_CUDA_TEST=1 timeout -k 5 240 ./gintest.test -test.v >"$out/ranks.log" 2>&1 || { tail -40 "$out/ranks.log"; exit 1; }
grep -hE '^(---|    ---|ok|PASS|SKIP)|load:|GB/s|a round trip|it ended after' "$out/conformance.log" "$out/differential.log" "$out/ranks.log" | grep -vE '^    ---' | tee -a "$out/summary.txt"

echo "== C++ programs" | tee -a "$out/summary.txt"
for p in calls pingpong alltoall; do
	timeout -k 5 30 "cxx/$p" timeout=10s | tee -a "$out/summary.txt"
done

timeout -k 5 "${LIMIT:-200}" ./measure -gpu "$here" -share="${SHARE:-0}" -rounds "$rounds" -out "$out/gpu.jsonl" 2>&1 | tee -a "$out/summary.txt"

echo "== dispatch and combine" | tee -a "$out/summary.txt"
timeout -k 5 "${MOE_LIMIT:-230}" ./measure -gpu "$here" -moe -rounds 1 -out "$out/gpu.jsonl" 2>&1 | tee -a "$out/summary.txt"
