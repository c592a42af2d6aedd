# Sourced by a job: nouveau has to refuse its GPU, a model with a defect. P2PTEST_REFUSED is what
# nouveau has to say. Defines the command `nouveau_refused`, which prints KTAP.

# result STATUS WHAT
result() {
	_number=$((_number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $_number $2"
	else
		echo "not ok $_number $2"
		_failed=1
	fi
}

# Twice, because the first attempt must leave the GPU and the driver as they were.
nouveau_refused() {
	_number=0
	_failed=0
	echo 'KTAP version 1'
	echo '1..10'
	for _round in 1 2; do
		dmesg -C
		modprobe nouveau modeset=2 config=MmuDebugBufferSize=4096
		result $? "load, round $_round"
		dmesg >"$out/refused-$_round.txt"
		grep 'nouveau ' "$out/refused-$_round.txt" | sed 's/^/# /'
		grep -q "$P2PTEST_REFUSED" "$out/refused-$_round.txt"
		result $? "an error that says why, round $_round"
		! ls -d /sys/bus/pci/drivers/nouveau/0000:* 2>/dev/null
		result $? "no device has the driver, round $_round"
		! ls /dev/dri/renderD* 2>/dev/null
		result $? "no render node, round $_round"
		modprobe -r nouveau
		result $? "unload, round $_round"
	done
	return $_failed
}
