# perftest, with on-demand paging and the buffer of one end in the test GPU. Sourced by
# jobs that ask for it, after mlx5.sh; defines the command `perftest`, which prints KTAP.

# 16 pages a message, and twice that a buffer: what it sends, then what it receives.
_size=65536
_pages=16
_iterations=20

_stats=/sys/kernel/mm/hmm/p2p_stats

# The path to the first GPU, which has the buffer.
_path=${P2PTEST_EXPECT%%,*}

ip link set lo up

# count RESULT: how many pages had it so far, in $pages
count() {
	read -r pages <"$_stats/$1"
}

# listens PORT: whether somebody does; PORT as the kernel prints it
listens() {
	grep -q ":$1 .* 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# end_of SERVER|CLIENT: the command that starts this end
end_of() {
	[ "$1" = "$gpu_end" ] && _preload=$P2PTEST_MODDIR/../guest/gpu_buffer.so || _preload=
	_end=$1
	shift
	LD_PRELOAD=$_preload timeout 60 "$@" >"$out/$_end.txt" 2>&1
}

# told END WHAT: the number that the preloaded library told, in $pages
told() {
	pages=$(sed -n "s/.*gpu_buffer: $2 \([0-9]*\).*/\1/p" "$out/$1.txt")
}

# talk PROGRAM: its server and its client, on one NIC
talk() {
	set -- "$1" -d mlx5_0 --odp -F -n $_iterations -s $_size
	# In a guest that sees no switch, mlx5 asks for no peers with relaxed ordering.
	[ "$_path" = bus_addr ] || set -- "$@" --disable_pcie_relaxed
	end_of server "$@" &
	_tries=0
	until listens 4853 || [ $_tries -ge 150 ]; do
		_tries=$((_tries + 1))
		sleep 0.1
	done
	end_of client "$@" 127.0.0.1
	_status=$?
	wait $! && return $_status
}

# judge LEAST TOUCHED POLLED: what is wrong, in $why. LEAST: pages that must have had the
# result; TOUCHED: those that the NIC reads or writes; POLLED: those of them that the CPU
# brings home
judge() {
	why=
	told "$gpu_end" moved
	moved=${pages:-0}
	told "$gpu_end" 'still there'
	there=${pages:-0}
	[ "$moved" = $((2 * _pages)) ] || why="$moved pages moved to the GPU"
	for _result in "$_stats"/*; do
		_result=${_result##*/}
		count "$_result"
		eval "_more=\$((pages - before_$_result))"
		if [ "$_result" = "$result" ]; then
			[ "$_more" -ge "$1" ] || why="$why; $_more pages counted as $_result"
		elif [ "$_more" != 0 ]; then
			why="$why; $_more pages counted as $_result"
		fi
	done
	case $result in
	bus_addr | host_bridge) _left=$((moved - $3)) ;;
	*) _left=$((moved - $2)) ;;
	esac
	[ "$there" = $_left ] || why="$why; $there pages in the GPU at the end, and not $_left"
}

# case_of POLICY END PROGRAM: one line of KTAP. `# vram` says how many bytes the NIC has
# read or written in the GPU, at least and at most; its own log, which the host has, must
# agree. It may use a polled page there once, before the CPU brings that home.
case_of() {
	number=$((number + 1))
	gpu_end=$2
	echo "$1" >/sys/kernel/mm/hmm/p2p
	result=$_path
	[ "$1" != never ] || result=policy
	for _result in "$_stats"/*; do
		count "${_result##*/}"
		eval "before_${_result##*/}=$pages"
	done
	# The CPU waits for the last byte of a message, and counts in that of its own.
	case $3 in
	ib_write_lat) _touched=$((2 * _pages)) _polled=2 ;;
	*) _touched=$_pages _polled=0 ;;
	esac
	if talk "$3"; then
		judge $((_touched - _polled)) "$_touched" $_polled
	else
		why='perftest failed'
	fi
	case $result in
	bus_addr | host_bridge)
		_least=$((_iterations * (_touched - _polled) * 4096))
		echo "# vram $_least $((_least + _polled * 4096))"
		;;
	*) echo '# vram 0' ;;
	esac
	if [ -z "$why" ]; then
		echo "ok $number $3, the $2's buffer, $1"
		return
	fi
	failed=1
	for _end in server client; do
		tail -n 25 "$out/$_end.txt" | sed "s/^/# $_end: /"
	done
	echo "# ${why#; }"
	echo "not ok $number $3, the $2's buffer, $1"
}

perftest() {
	number=0
	failed=0
	policies='never auto'
	# Pages come home in any case, for another reason.
	[ "$_path" != topology ] || policies=auto
	set -- $policies
	echo 'KTAP version 1'
	echo "1..$((5 * $#))"
	for policy; do
		for program in ib_write_bw ib_read_bw ib_send_bw ib_write_lat; do
			case_of "$policy" server $program
		done
		case_of "$policy" client ib_write_bw
	done
	return $failed
}
