# What runs in the guest: sourced by the job that the tool writes. Results go to
# files of the host, because the console is shared with the kernel.
#
# The job sets: out (a directory of the host), P2PTEST_MODDIR (modules), guest (this
# directory, for scripts that come after).

# Shells are slow in an emulated machine: this file uses few programs.

exec </dev/null >"$out/job.log" 2>&1

# load MODULE [PARAMETER...]
load() {
	_module=$1
	shift
	insmod "$P2PTEST_MODDIR/$_module.ko" "$@" && return
	echo "insmod $_module failed"
	finish 101
}

# The port to the judge, in $judge
find_judge() {
	for _port in /sys/class/virtio-ports/*; do
		read -r _name <"$_port/name" || continue
		[ "$_name" = judge ] || continue
		judge=/dev/${_port##*/}
		return
	done
	echo 'there is no port to the judge'
	finish 102
}

# run NAME COMMAND...: output to NAME.log, exit status to NAME.status
run() {
	_name=$1
	shift
	echo "harness: $_name" >/dev/kmsg
	"$@" >"$out/$_name.log" 2>&1
	echo $? >"$out/$_name.status"
}

# What is allocated and nobody points to. The first scan takes the checksums of such
# objects. The second one reports those that are five seconds old and have not changed.
# kmemleak can disable itself, and from then on refuses commands, but not to be read:
# `stack=on`, its default, asks whether the second scan was a whole one.
kmemleak() {
	_leaks=/sys/kernel/debug/kmemleak
	echo 'harness: kmemleak' >/dev/kmsg
	echo scan >$_leaks &&
		sleep 6 &&
		echo scan >$_leaks &&
		cat $_leaks >"$out/kmemleak" &&
		echo stack=on >$_leaks && return
	echo 'no scan: debugfs is not mounted, or kmemleak is disabled' >"$out/kmemleak"
}

# What gcov has counted; a file is named by its path, with # for /. And where the
# code of modules is.
coverage() {
	_root=/sys/kernel/debug/gcov
	echo 'harness: coverage' >/dev/kmsg
	mkdir "$out/gcov"
	find $_root -name '*.gcda' | while read -r _file; do
		cat "$_file" >"$out/gcov/$(echo "${_file#"$_root"}" | tr / '#')"
	done
	for _file in /sys/module/*/sections/.text; do
		_name=${_file#/sys/module/}
		echo "${_name%%/*} $(cat "$_file")" >>"$out/modules"
	done
}

# finish [STATUS]: the host counts a job as ended when this file is there. The line is
# the last thing, so that a console which has it has all that the kernel said before.
finish() {
	# How many watchpoints KCSAN has set, and how many races it has seen.
	[ ! -e /sys/kernel/debug/kcsan ] || cat /sys/kernel/debug/kcsan >"$out/kcsan"
	echo "${1:-0}" >"$out/status"
	sync
	echo 'harness: the job has ended' >/dev/kmsg
	exit "${1:-0}"
}
