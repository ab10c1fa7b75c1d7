#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh --peers [OUT], from a folder that bench/gpu/bundle.sh filled: on two GPUs of a host that reach each other by NVLink,
# compiles bare kernels and the programs that call NCCL and NVSHMEM, builds DeepEP where its source is, and measures ours and
# theirs in turn. Writes OUT/gpu-peers.jsonl (rows as tools/measure's) and OUT/peers.txt. Needs nvcc; of NCCL 2.28, NVSHMEM 3.4
# and PyTorch, what is not here is said and left out. libraries.sh says where they are looked for.
# Nothing is multicast, and no setting of a GPU is changed. At most nine minutes. Exit: 0 all that is here ran and every byte was
# right, 1 it did not, 3 there are no two GPUs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/out}
mkdir -p "$out" "$here/peers"
cd "$here"
end=$((SECONDS + 530))
export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 NVSHMEM_REMOTE_TRANSPORT=none DOORBELL_CUDA_TEST=1
say() { echo "$@" | tee -a "$out/peers.txt"; }
: >"$out/peers.txt"

. ./libraries.sh

arch=sm_90
if name=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 2>/dev/null); then arch=sm_${name/./}; fi
flags=(-O3 -std=c++17 -arch="$arch")
declare -A made
build() { # NAME ARGS...
	local name=$1
	shift
	nvcc "${flags[@]}" "$@" -o "peers/$name" >"$out/$name.build.log" 2>&1 &
	made[$name]=$!
}
build raw bench/gpu/peers/raw.cu
nvcc "${flags[@]}" -o floors bench/gpu/floors.cu -lcuda >"$out/floors.build.log" 2>&1 &
made[floors]=$!
for peer in nccl nvshmem; do
	if with=$(peer_flags "$peer"); then
		# shellcheck disable=SC2086 # words
		build "$peer" "bench/gpu/peers/$peer.cu" $with
	else
		say "left out: $(peer_lacks "$peer")"
	fi
done
failed=0
for name in "${!made[@]}"; do
	wait "${made[$name]}" || { say "left out: $name does not compile: $(grep -m1 -iE 'error|cannot find' "$out/$name.build.log" || tail -1 "$out/$name.build.log")"; failed=1; }
done

# Of the raw kernels depends whether there is anything to measure.
rc=0
timeout -k 5 60 peers/raw >"$out/raw.txt" 2>&1 || rc=$?
if [ "$rc" != 0 ]; then
	say "bare kernels ended with $rc: $(tail -1 "$out/raw.txt")"
	exit "$rc"
fi
{
	nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
	nvidia-smi topo -m || true
	nvcc --version | tail -2 | head -1
} | tee -a "$out/peers.txt"
timeout -k 5 240 peers/deepep.sh build 2>&1 | tee -a "$out/peers.txt" || true # it says why not
[ "$end" -gt $((SECONDS + 60)) ] || { say "no time is left to measure"; exit 1; }
timeout -k 5 $((end - SECONDS)) ./measure -gpu "$here" -peers -rounds "${ROUNDS:-2}" -out "$out/gpu-peers.jsonl" 2>&1 | tee -a "$out/peers.txt" || failed=1
exit "$failed"
