# Sourced by a job: nouveau's KUnit tests, which need no GPU, run as it is loaded.

if ! modprobe nouveau; then
	echo 'nouveau does not load'
	finish 104
fi
