# Sourced by a job: drivers without their hardware are loaded and unloaded again.

for _driver in nouveau xe amdgpu mlx5_ib; do
	echo "harness: $_driver" >/dev/kmsg
	if ! modprobe "$_driver" || ! modprobe -r "$_driver"; then
		echo "$_driver does not load and unload"
		finish 103
	fi
done
