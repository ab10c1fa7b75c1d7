#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# deepep.sh [build]: DeepEP V1 (v1.2.1) on two GPUs of a host, whose source bench/gpu/bundle.sh put into ../deepep and nobody
# commits. "build" makes its extension in place; without it, its public tests run, and what they measured is printed as lines of
# JSON. Needs Python with PyTorch, nvcc and NVSHMEM. Exit 3: it cannot be built or started here, and says why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$here/../deepep
cannot() {
	echo "deepep: $*" >&2
	exit 3
}
[ -f "$src/setup.py" ] || cannot "its source is not in the bundle: DEEPEP=CLONE DEEPEP_REV=v1.2.1 bench/gpu/bundle.sh puts it there"
python3 -c 'import torch; assert torch.cuda.device_count() >= 2, "it sees %d GPUs" % torch.cuda.device_count()' 2>"$here/deepep.why" ||
	cannot "PyTorch with two GPUs is needed: $(tail -1 "$here/deepep.why")"
cd "$src"
if [ "${1-}" = build ]; then
	if python3 -c 'import nvidia.nvshmem' 2>/dev/null; then
		unset NVSHMEM_DIR # its setup finds the wheel's library by itself, and no other way
	elif [ -z "${NVSHMEM_DIR-}" ]; then
		cannot "there is no NVSHMEM: NVSHMEM_DIR is not set, and Python has no nvidia.nvshmem"
	fi
	cccl=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")/include/cccl # from CUDA 13 on cuda/std is there
	CPATH=$cccl${CPATH:+:$CPATH} TORCH_CUDA_ARCH_LIST=9.0 MAX_JOBS=$(nproc) python3 setup.py build_ext --inplace >"$here/deepep.build.log" 2>&1 ||
		cannot "it does not build: $(grep -m1 -iE 'error' "$here/deepep.build.log" || tail -1 "$here/deepep.build.log")"
	exit
fi
export PYTHONPATH=$src NVSHMEM_REMOTE_TRANSPORT=none NVSHMEM_DISABLE_NVLS=1 NCCL_NVLS_ENABLE=0
timeout -k 5 50 python3 tests/test_low_latency.py --num-processes 2 --num-tokens 128 --num-experts 288 >"$here/deepep.ll.log" 2>&1 ||
	cannot "its low-latency test ended with $?: $(grep -m1 -iE 'error|assert|trap' "$here/deepep.ll.log" || tail -1 "$here/deepep.ll.log")"
# [rank 0] Dispatch bandwidth: 435.10 GB/s, avg_t=17.25 us | Combine bandwidth: 695.00 GB/s, avg_t=20.93 us
sed -nE 's/^\[rank 0\] Dispatch bandwidth:.*avg_t=([0-9.]+) us \| Combine bandwidth:.*avg_t=([0-9.]+) us.*/{"floor":"DeepEP LL dispatch, FP8, 128 tokens","p50_us":\1}\n{"floor":"DeepEP LL combine, 128 tokens","p50_us":\2}/p' "$here/deepep.ll.log"
timeout -k 5 90 python3 tests/test_intranode.py --num-processes 2 >"$here/deepep.ht.log" 2>&1 || {
	echo "deepep: its intranode test ended with $?: $(tail -1 "$here/deepep.ht.log")" >&2
	exit 0 # what the other one measured stands
}
# [tuning] Best dispatch (FP8): SMs 24, NVL chunk 12, 155.00 GB/s (NVL), t: 123.40 us
sed -nE 's/^\[tuning\] Best (dispatch \([A-Z0-9]+\)|combine):.* ([0-9.]+) GB\/s \(NVL\), t: ([0-9.]+) us.*/{"floor":"DeepEP HT \1, 4096 tokens","p50_us":\3,"GBps":\2}/p' "$here/deepep.ht.log"
