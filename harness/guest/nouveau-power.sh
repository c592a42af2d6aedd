# Sourced by a job: nouveau with runtime PM, and a way to suspend its GPU with the machine.

nouveau_options=runpm=1
. "$guest/nouveau.sh"
_gpu=$(readlink -f /sys/class/drm/renderD128/device)
load p2ptest_no_suspend device="${_gpu##*/}"
. "$guest/suspend-any.sh"
