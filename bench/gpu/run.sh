#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [OUT], from a folder that bench/gpu/bundle.sh filled, does in one call all that is tried and measured on one GPU: while
# the twins and the floors are compiled, the tests of the cuda device, of gin, of graphs and recovery of dispatch and combine,
# also over an emulated NIC, and the examples; then our kernels against their results on the CPU, the C++ programs, the stores of
# a put in both compilers' code, ours, twin and floor measured in turn, and 2, 4 and 8 ranks, as many as there are GPUs, a process
# each. With SHARE=1 also more ranks than GPUs, all of one process on one GPU: a dry run of the same. Rows say how many GPUs their
# ranks were on. Dispatch and combine come with limits of their own: one round, since a row is a median of many operations. Last
# what a WQE costs. Writes OUT/gpu.jsonl (rows as tools/measure's), OUT/summary.txt, with the seconds of each part, and
# OUT/logs.tgz. Needs an NVIDIA GPU, its driver and nvcc; NCCL and NVSHMEM are measured beside ours where they are (libraries.sh); ncu counts instructions if it is there and may. It changes no setting of
# the GPU. BUDGET (480) is the seconds that all of it may take: a part gets its own limit or what is left. Each part runs whatever
# became of those before. Exit: 0 all ran and every byte was right, whatever the figures are; 1 not, and the last line names the
# parts.
# run.sh --peers [OUT] measures two GPUs instead, beside NCCL, NVSHMEM and DeepEP: see peers.sh.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1-}" = --peers ]; then
	shift
	exec "$here/peers.sh" "$@"
fi
out=${1:-$here/out}
mkdir -p "$out" "$here/logs" || exit 1
cd "$here" || exit 1
budget=${BUDGET:-480}
export DOORBELL_CUDA_TEST=1
arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 | tr -d '.')
failed=()
say() { echo "$@" | tee -a "$out/summary.txt"; }
: >"$out/summary.txt"

# part NAME LIMIT COMMAND... runs a command in that many seconds at most, its output in logs/NAME.log.
part() {
	local name=$1 limit=$2 began=$SECONDS left=$((budget - SECONDS)) rc=0
	shift 2
	if [ "$left" -lt 5 ]; then
		echo "no time was left" >"logs/$name.log"
		rc=124
	else
		timeout -k 5 "$((limit < left ? limit : left))" "$@" >"logs/$name.log" 2>&1 || rc=$?
	fi
	say "== $name: $((SECONDS - began)) s, status $rc"
	if [ "$rc" != 0 ]; then
		failed+=("$name")
		tail -40 "logs/$name.log"
	fi
}
# show NAME PATTERN puts lines of a part's log into the summary.
show() { grep -hE "$2" "logs/$1.log" | tee -a "$out/summary.txt"; }
tests='^(---|    --- FAIL|ok|PASS|SKIP)' # no figures: compilers run beside some

declare -A made
build() { # NAME COMMAND...
	local name=$1
	shift
	timeout -k 5 240 "$@" >"logs/$name.build.log" 2>&1 &
	made[$name]=$!
}
flags=(-O3 -std=c++17 -arch="$arch")
for t in twins copies ll ht gdaki; do
	build "$t" nvcc "${flags[@]}" -ptx "bench/gpu/$t.cu" -o "$t.ptx"
done
build floors nvcc "${flags[@]}" -o floors bench/gpu/floors.cu -lcuda
. ./libraries.sh
mkdir -p peers
for peer in nccl nvshmem; do
	if with=$(peer_flags "$peer"); then
		# shellcheck disable=SC2086 # words
		build "$peer" nvcc "${flags[@]}" "bench/gpu/peers/$peer.cu" $with -o "peers/$peer"
	else
		say "left out: $(peer_lacks "$peer")"
	fi
done
cp include/testdata/calls.cu cxx/
for p in calls pingpong alltoall; do
	build "cxx-$p" nvcc "${flags[@]}" -I include -o "cxx/$p" "cxx/$p.cu" ./libdoorbell.so -lpthread
done

{
	nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
	nvcc --version | tail -2 | head -1
} | tee -a "$out/summary.txt"

part conformance 60 ./cuda.test -test.run '^TestGPU' -test.v
show conformance "$tests"
part ranks 100 ./gintest.test -test.v
show ranks "$tests"
on=(env DOORBELL_DEVICE=cuda ./moe.test -rapid.checks=4 -rapid.nofailfile -test.v -test.run)
part graphs 60 "${on[@]}" '^Test(HTGraph|Replay.*|NumbersOfTokensInTurn|LLShapes|HTShapes|LLEmptyRanks|SplitIsFused|HTSkew)$' -test.skip OverDriver
show graphs "$tests"
part recovery 60 "${on[@]}" '^Test(Recover|RecoverForgets|RecoverFromLate|HTRecover|HTRecoverForgets|PeerLeaves|HTPeerLeaves|HTLossOfAnother)$'
show recovery "$tests"
part one-that-lives 30 "${on[@]}" '^TestRecoverFromOneThatLives$'
part killed 45 "${on[@]}" '^TestKilledProcesses$'
part moe-by-nic 40 "${on[@]}" '^TestOverNIC$/^(recover|HT_recover|HT_graph|replays|LL|HT)$/^(|per_.*|R4.*|R6.*)$'
for b in "pingpong --sizes 8 --iters 1000" "rate --iters 2000" "ll --iters 200 --tokens 8 --experts 16 --hidden 512 --lsa off"; do
	# shellcheck disable=SC2086 # words
	part "${b%% *}-by-nic" 20 ./doorbell bench $b -n 2 --device cuda --local --backend gdaki --timeout 5s
	show "${b%% *}-by-nic" '^(verified|note: emulated NIC)'
done
part examples 60 ./examples.sh
show examples '^examples'

began=$SECONDS
for name in "${!made[@]}"; do
	wait "${made[$name]}" || { say "$name does not compile: $(grep -m1 -iE 'error|cannot find' "logs/$name.build.log" || tail -1 "logs/$name.build.log")"; failed+=("$name"); }
done
say "== compilers: $((SECONDS - began)) s more than the tests"
say "stores to the host's memory in a kernel, plain and ordered, and instructions, after ptxas:"
code() { # PTX KERNEL
	[ -e "$1.cubin" ] || ptxas -O3 -arch="$arch" "$1.ptx" -o "$1.cubin" || return
	cuobjdump -sass -fun "$2" "$1.cubin" | awk -v who="$1" -v kernel="$2" '
		/STG|ST\.E/ { stores++ } /STG.*STRONG\.SYS/ { sys++ } /^ +\/\*[0-9a-f]+\*\/ / { n++ }
		END { printf "  %-13s %-14s %3d stores, %d of them STRONG.SYS, %d instructions\n", who, kernel, stores, sys, n }'
}
for kernel in Post PingPong; do
	for who in kernels_gpuc twins; do say "$(code "$who" "$kernel")"; done
done
say "$(code kernels_gpuc WQEs_X_DC_NIC1)"
say "$(code gdaki WQEs)"

part differential 60 ./gpu.test -test.run 'TestDifferential|TestLoad|TestProcesses|TestCopies|TestLargePuts|TestWQETwins' -test.v
show differential "$tests|load:|GB/s|a round trip|it ended after"
for p in calls pingpong alltoall; do
	options=timeout=10s
	[ "$p" != calls ] || options+=" net=staged+tcp" # ce, which is taken by itself, gives no fence over contexts
	part "run-$p" 20 "cxx/$p" "$options"
	cat "logs/run-$p.log" >>"$out/summary.txt"
done

# measure NAME SECONDS ARGS... adds the rows of what has run by then, or while there is time.
measure() {
	local name=$1 limit=$2 left=$((budget - SECONDS - 10))
	shift 2
	limit=$((limit < left ? limit : left))
	part "$name" "$((limit + 10))" ./measure -gpu "$here" -for "${limit}s" -out "$out/gpu.jsonl" "$@"
	tee -a "$out/summary.txt" <"logs/$name.log"
}
measure wqes 60 -wqes -rounds 1
measure moe "${MOE_LIMIT:-130}" -moe -rounds 1
measure figures "${LIMIT:-120}" -share="${SHARE:-0}" -rounds "${ROUNDS:-2}"

tar -czf "$out/logs.tgz" logs
say "== all: $SECONDS s"
if [ "${#failed[@]}" != 0 ]; then
	say "failed: ${failed[*]}"
	exit 1
fi
