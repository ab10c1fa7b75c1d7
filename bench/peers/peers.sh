# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The peers: for each, NAME_ready says whether it is here (and builds what it needs), NAME measures one pass. Sourced by run,
# which gives them: bounded, sample, samples, note, fail, have, $tmp, $here, $a, $b (the CPUs), $seed.

cc=${CC:-cc}
flags='-std=c11 -O2 -Wall -Wextra'

# build COMPILER NAME: 1 when it could not.
build() {
	# shellcheck disable=SC2086
	bounded 60 "$1" $flags -o "$tmp/$2" "$here/$2.c" && return
	fail "build $2.c with $1: failed"
	return 1
}

enough_memory() {
	local kib
	kib=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)
	[ "${kib:-0}" -ge $((700 << 10)) ] && return
	note "skipped $1: needs 700 MiB, has $((${kib:-0} >> 10)) MiB"
	return 1
}

c_version() {
	echo "$("$cc" --version | head -1), $(getconf GNU_LIBC_VERSION 2>/dev/null || echo 'unknown libc')"
}

bare_ready() {
	have "$cc" || { note "skipped bare C: no C compiler ($cc)"; return 1; }
	c_version=$(c_version)
	build "$cc" pingpong && build "$cc" memcpy || return 1
	memory=no
	enough_memory memcpy && memory=yes
	return 0
}

bare() {
	if bounded 35 "$tmp/pingpong" "$a" "$b" 30 "$seed"; then
		samples c 'pingpong ' "$c_version" "pingpong $a $b 30 $seed" ''
	else
		fail 'run pingpong: failed'
	fi
	[ $memory = yes ] || return
	if bounded 65 "$tmp/memcpy" "$a" "$b" 24 256 "$seed"; then
		samples c 'memcpy ' "$c_version" "memcpy $a $b 24 256 $seed" ''
	else
		fail 'run memcpy: failed'
	fi
}

# ucx_pair TEST...: one client and one server; the client's CSV in $tmp/out. The server says when it listens.
ucx_pair() {
	local port try line rc
	for try in 1 2 3 4 5; do
		port=$((20000 + (RANDOM + $$ + try) % 20000))
		exec 3< <(exec timeout -k 2 30 stdbuf -oL ucx_perftest -c "$a" -p "$port" 2>&1)
		server=$!
		line=
		while IFS= read -r -t 10 -u 3 line; do
			case $line in *Waiting*) break ;; esac
		done
		case $line in *Waiting*) ;; *)
			kill "$server" 2>/dev/null
			server=
			exec 3<&-
			continue # the port was taken
			;;
		esac
		bounded 30 ucx_perftest 127.0.0.1 -c "$b" -p "$port" -v "$@"
		rc=$?
		[ $rc -eq 0 ] || kill "$server" 2>/dev/null
		cat <&3 >/dev/null
		exec 3<&-
		server=
		return $rc
	done
	return 1
}

# ucx_case NAME BYTES UNIT COLUMN FACTOR TEST...: one run is one sample.
ucx_case() {
	local name=$1 bytes=$2 unit=$3 column=$4 factor=$5 value
	shift 5
	if ! ucx_pair "$@"; then
		fail "run ucx_perftest $*: failed"
		return
	fi
	value=$(awk -F, -v want="$column" -v factor="$factor" '
		/overall_lat/ { for (i = 1; i <= NF; i++) at[$i] = i; next }
		at[want] && NF > 4 { printf "%.4g", $(at[want]) * factor; exit }' "$tmp/out")
	[ -n "$value" ] || { fail "read ucx_perftest's figures: no column $column"; return; }
	sample ucx "$name" "$bytes" "$value" "$value" "$unit" 1 "UCX $ucx_version" "UCX_TLS=posix,self ucx_perftest $*"
}

ucx_ready() {
	have ucx_perftest || { note 'skipped UCX: no ucx_perftest (Debian: ucx-utils)'; return 1; }
	have stdbuf || { note 'skipped UCX: no stdbuf (coreutils)'; return 1; }
	ucx_version=$(ucx_info -v 2>/dev/null | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)
}

ucx() {
	local i
	export UCX_TLS=posix,self
	for i in 1 2 3; do
		# Its latency is half a round trip, in us, and an average: short runs, so that few meet a preemption.
		ucx_case 'put_lat, round trip' 8 ns overall_lat 2000 -t ucp_put_lat -s 8 -n 20000 -w 2000
	done
	# Its MB are 2^20 bytes.
	for i in 1 2; do
		ucx_case 'put_bw' 4194304 GB/s overall_bw 0.001048576 -t ucp_put_bw -s 4194304 -n 100 -w 10
	done
	unset UCX_TLS
}

# mpi SECONDS RANKS COMPONENT CPUS ARGS...: COMPONENT "" is Open MPI's own choice. Sets $mpi_command.
mpi() {
	local limit=$1 n=$2 component=$3 where=$4
	shift 4
	local opts=(--allow-run-as-root --oversubscribe --bind-to none -n "$n")
	case $component in
	'') ;;
	# By default this component serves only certain NICs.
	ucx) opts+=(--mca osc ucx --mca osc_ucx_tls any --mca osc_ucx_devices any) ;;
	*) opts+=(--mca osc "$component") ;;
	esac
	# shellcheck disable=SC2206
	opts+=($mpi_more)
	mpi_command="${tune-}mpirun ${opts[*]} osc $*"
	[ -n "$where" ] && mpi_command="PEERS_CPUS='$where' $mpi_command"
	PEERS_CPUS=$where PEERS_SEED=$seed OMPI_MCA_plm_rsh_agent=true bounded "$limit" mpirun "${opts[@]}" "$tmp/osc" "$@"
}

openmpi_ready() {
	have mpicc && have mpirun || { note 'skipped Open MPI: no mpicc or mpirun (Debian: openmpi-bin, libopenmpi-dev)'; return 1; }
	mpi_version=$(mpirun --version 2>/dev/null | grep -m1 -oE 'Open MPI\) [0-9.]+' | grep -oE '[0-9.]+$')
	[ -n "$mpi_version" ] || { note 'skipped Open MPI: mpirun is of another MPI'; return 1; }
	mpi_version="Open MPI $mpi_version"
	mpi_more=
	build mpicc osc
}

# mpi_case COMPONENT SUFFIX ARGS...
mpi_case() {
	local component=$1 suffix=$2
	shift 2
	if mpi 40 2 "$component" "$a $b" "$@"; then
		samples openmpi '' "$mpi_version" "$mpi_command" "$suffix"
	elif [ -n "$component" ] && grep -q 'MPI_ERR_WIN\|requested component was not found\|could not be found' "$tmp/err"; then
		note "skipped Open MPI's osc $component: not in this build"
	else
		fail "run $mpi_command: failed or did not end"
	fi
}

# mpi_pairs SUFFIX CPUS MORE ARGS...: four ranks on two CPUs; not to finish is a result too.
mpi_pairs() {
	local suffix=$1 where=$2
	mpi_more=$3
	shift 3
	local limit=$((end - SECONDS))
	[ $limit -lt 60 ] || limit=60
	if [ $limit -lt 20 ]; then
		note "skipped Open MPI's pairs,$suffix: no time left"
		return
	fi
	mpi $limit 4 '' "$where" pairs "$@"
	local rc=$?
	mpi_more=
	if [ $rc -eq 0 ]; then
		samples openmpi '' "$mpi_version" "$mpi_command" "$suffix"
	elif [ $rc -eq 124 ] || grep -q 'no answer before the deadline' "$tmp/err"; then
		sample openmpi "put_flush_pairs$suffix" 8 - - trips/s 0 "$mpi_version" "$mpi_command" "did not finish in $limit s"
	else
		fail "run $mpi_command: failed"
	fi
}

openmpi() {
	local component name
	for component in '' sm ucx; do
		name=${component:+ osc=$component}
		mpi_case "$component" "$name" lat
		mpi_case "$component" "$name" bw same
		mpi_case "$component" "$name" bw same 1
	done
	mpi_case '' ', source at page start' bw 0
}

openmpi_pairs() {
	# Two CPUs for four ranks, also where there are more.
	mpi_pairs ' 4 ranks' "$a,$b" ''
	mpi_pairs ' 4 ranks, pair on one CPU' "$a $b $b $a" '--mca mpi_yield_when_idle 0'
}

explain_ready() {
	have "$cc" || { note "skipped: no C compiler ($cc)"; return 1; }
	enough_memory copyshape && build "$cc" copyshape || return 1
	c_version=$(c_version)
	openmpi_ready || mpi_version=
	return 0
}

# glibc streams past the caches from a size on that it takes from the size of the caches. 2 MiB is about what a machine with
# a small last-level cache, or one that hides it, gets.
explain() {
	local limit tune suffix component name
	for limit in '' 0x200000; do
		tune='' suffix=''
		if [ -n "$limit" ]; then
			export GLIBC_TUNABLES=glibc.cpu.x86_non_temporal_threshold=$limit
			tune="GLIBC_TUNABLES=$GLIBC_TUNABLES "
			suffix=' | streams > 2 MiB'
		fi
		if bounded 95 "$tmp/copyshape" "$a" "$b" 16 "$seed"; then
			samples c '' "$c_version" "${tune}copyshape $a $b 16 $seed" "$suffix"
		else
			fail 'run copyshape: failed'
		fi
		[ -n "$mpi_version" ] || continue
		for component in '' sm ucx; do
			name=${component:+ osc=$component}
			mpi_case "$component" "$name src+0$suffix" bw 0
			mpi_case "$component" "$name src same$suffix" bw same
		done
	done
	unset GLIBC_TUNABLES
}
