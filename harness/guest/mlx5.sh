# The RDMA device of mlx5, mlx5_0: its port is up. Sourced by jobs that ask for it,
# after the modules were loaded.

# Over InfiniBand peers find each other by LID; this GID is the port's own.
mlx5_gid=0

_port=/sys/class/infiniband/mlx5_0/ports/1
_tries=0
until [ -c /dev/infiniband/uverbs0 ] && grep -q ACTIVE $_port/state 2>/dev/null; do
	_tries=$((_tries + 1))
	if [ "$_tries" -ge 100 ]; then
		echo "mlx5_0 has no port that is up: $(cat $_port/state)"
		finish 103
	fi
	sleep 0.1
done

# rdma-core's tests ask for huge pages where some are reserved.
echo 16 >/proc/sys/vm/nr_hugepages

# pyverbs TESTS MODULE...: modules of rdma-core's own tests, in this directory
pyverbs() {
	_tests=$1
	shift
	PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$_tests:$_tests/tests \
		/usr/bin/python3 "$guest/unittest_ktap.py" "$@" --dev mlx5_0 --gid "$mlx5_gid"
}
