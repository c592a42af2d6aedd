# Sourced by a job: nouveau drives a model of a Pascal GPU, without a display. A smaller
# buffer for the MMU's faults saves a second: nouveau clears it byte by byte.

if ! modprobe nouveau modeset=2 config=MmuDebugBufferSize=4096 $nouveau_options; then
	echo 'nouveau does not load'
	finish 104
fi
for _name in /sys/class/drm/renderD*; do
	[ -e "$_name" ] && return
done
echo 'nouveau has found no GPU that it can drive'
finish 104
