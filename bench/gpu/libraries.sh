# SPDX-License-Identifier: Apache-2.0
#
# For run.sh and peers.sh, which read it: where NCCL 2.28 and NVSHMEM 3.4 are, and what a program that calls one is compiled with.
# NCCL_HOME and NVSHMEM_HOME name folders with include and lib; without them system folders and Python's are searched.

# home HEADER NAME prints the folder whose include has HEADER: the one given, else Python's, else a system's.
home() {
	local site d
	site=$(python3 -c 'import site, sys; print(" ".join(p + "/nvidia/'"$2"'" for p in site.getsitepackages() + [site.getusersitepackages()] + sys.path if p))' 2>/dev/null || true)
	for d in "${3-}" $site /usr /usr/local /usr/local/cuda /opt/nvidia/"$2"; do
		if [ -n "$d" ] && [ -e "$d/include/$1" ]; then
			echo "$d"
			return
		fi
	done
	return 1
}
# library HOME NAME prints the folder of a library and the file's name as the linker takes it.
library() {
	local file
	file=$(find -L "$1/lib" "$1/lib64" "$1/lib/$(uname -m)-linux-gnu" -maxdepth 1 -name "$2.so*" 2>/dev/null | sort | head -1)
	[ -n "$file" ] && echo "-L$(dirname "$file") -l:$(basename "$file") -Xlinker -rpath,$(dirname "$file")"
}

# peer_flags NAME prints what nccl.cu or nvshmem.cu takes, and fails where the library is not there.
peer_flags() {
	local at lib
	case $1 in
	nccl)
		at=$(home nccl_device.h nccl "${NCCL_HOME-}") && lib=$(library "$at" libnccl) || return 1
		echo "-I $at/include $lib"
		;;
	nvshmem)
		at=$(home nvshmem.h nvshmem "${NVSHMEM_HOME-}") && lib=$(library "$at" libnvshmem_host) || return 1
		echo "-rdc=true -I $at/include -L$at/lib -lnvshmem_device $lib"
		;;
	esac
}
# peer_lacks NAME says what was not found.
peer_lacks() {
	case $1 in
	nccl) echo "NCCL: no include/nccl_device.h and libnccl.so in NCCL_HOME, Python's packages or /usr" ;;
	nvshmem) echo "NVSHMEM: no include/nvshmem.h and libnvshmem_host.so in NVSHMEM_HOME, Python's packages or /usr" ;;
	esac
}
