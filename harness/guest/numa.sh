# Sourced by a job in a machine with two NUMA nodes. While the job's programs run, their pages
# go from node to node. The command `numa`, which comes after them, checks that they did, and
# prints KTAP.

must() {
	"$@" && return
	echo "failed: $*"
	finish 103
}

must grep -qx 0 /sys/devices/system/node/has_cpu
must grep -qx '0-1' /sys/devices/system/node/has_memory
must grep -qx 1 /proc/sys/kernel/numa_balancing
must grep -qx 1 "$(echo /sys/bus/pci/drivers/p2ptest_nic/0*)/numa_node"
# Look at a process's pages as soon as it runs, and again after 100 ms: tests are short.
_balancing=/sys/kernel/debug/sched/numa_balancing
must sh -c "echo 16 >$_balancing/scan_size_mb"
must sh -c "echo 1 >$_balancing/scan_delay_ms"
must sh -c "echo 100 >$_balancing/scan_period_min_ms"
must sh -c "echo 100 >$_balancing/scan_period_max_ms"

# A process whose pages are where it runs has nothing to balance.
python3 "$guest/numa_mover.py" &
_mover=$!

numa() {
	kill "$_mover"
	echo 'KTAP version 1'
	echo 1..3
	_n=0
	_bad=0
	for _what in pgmigrate_success numa_pte_updates numa_hint_faults; do
		_n=$((_n + 1))
		_count=$(sed -n "s/^$_what //p" /proc/vmstat)
		if [ "${_count:-0}" -gt 100 ]; then
			echo "ok $_n $_what"
		else
			echo "not ok $_n $_what"
			_bad=1
		fi
		echo "# $_what: $_count"
	done
	return "$_bad"
}
