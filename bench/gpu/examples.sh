#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# examples.sh, from a folder that bench/gpu/bundle.sh filled: runs each example on GPUs, all its ranks in one process on one GPU, and
# where there are two GPUs two processes, one on each. Each compares all that it receives. Exit: 0 all were right, 1 not.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
export DOORBELL_TIMEOUT=10s
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
bad=0
try() { # WHERE COMMAND...
	local where=$1 rc=0
	shift
	timeout -k 5 20 "$@" || rc=$?
	echo "examples: ${!#}, $where: status $rc"
	[ "$rc" = 0 ] || bad=1
}
for x in examples/*; do
	try "ranks of one process" env DOORBELL_DEVICE=cuda "$x"
	[ "$gpus" -lt 2 ] || try "a process a GPU" ./doorbell run -n 2 --device cuda -- "$x"
done
exit "$bad"
