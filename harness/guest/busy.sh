# Sourced by a job. While the job's programs run, other processes fork, execute programs, fill
# memory and give it back, and let the kernel move pages out of the way. The command `busy`,
# which comes after the programs, ends these processes, checks that each got something done,
# and prints KTAP.

# The tests count how often their pages move. What they lock stays where it is.
echo 0 >/proc/sys/vm/compact_unevictable_allowed

_busy=$out/busy
mkdir "$_busy"
for _n in 1 2; do
	while [ ! -e "$_busy/end" ]; do
		dd if=/dev/zero of=/dev/shm/busy.$_n bs=1M count=64 2>/dev/null
		echo 1 >/proc/sys/vm/compact_memory
		echo . >>"$_busy/$_n"
	done &
done

busy() {
	: >"$_busy/end"
	wait
	echo 'KTAP version 1'
	echo 1..2
	_bad=0
	for _n in 1 2; do
		# A process that did nothing has no file.
		_rounds=$(cat "$_busy/$_n" 2>/dev/null | wc -l)
		_not=
		if [ "$_rounds" -lt 5 ]; then
			_not='not '
			_bad=1
		fi
		echo "${_not}ok $_n process_$_n"
		echo "# $_rounds rounds"
	done
	return $_bad
}
