# Sourced by a job: nouveau with runtime PM, and a way to suspend its GPU with the machine.

nouveau_options=runpm=1
. "$guest/nouveau.sh"
. "$guest/suspend-any.sh"
_gpu=$(readlink -f /sys/class/drm/renderD128/device)
P2PTEST_SUSPEND="$P2PTEST_SUSPEND ${_gpu##*/}"
