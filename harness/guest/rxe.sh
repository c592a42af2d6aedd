# An RDMA device without hardware, rxe0, on a network device that leads nowhere:
# rxe hands packets to itself over. Sourced by jobs that ask for it, after the
# modules were loaded.
#
# udev is not there, which renames devices and makes nodes elsewhere: those of
# devtmpfs are what libibverbs opens.

# GID 0 is that of the MAC address, and needs IPv6; this is the IPv4 address's.
rxe_gid=1

must() {
	"$@" && return
	echo "failed: $*"
	finish 103
}

must ip link set lo up
must ip link set dummy0 up
must ip address add 192.0.2.1/24 dev dummy0
must rdma link add rxe0 type rxe netdev dummy0

# The GID table follows the addresses of the network device, a moment later.
_gids=/sys/class/infiniband/rxe0/ports/1/gids
_tries=0
until grep -q 'ffff:c000:0201$' "$_gids/$rxe_gid" && [ -c /dev/infiniband/uverbs0 ]; do
	_tries=$((_tries + 1))
	[ "$_tries" -lt 100 ] || must false "rxe0 has no GID of its address"
	sleep 0.1
done

# No huge pages are reserved: rdma-core's tests would ask for memory regions of
# such pages, which rxe does not have, and take the refusal for a failure.

# pyverbs TESTS MODULE...: modules of rdma-core's own tests, in this directory
pyverbs() {
	_tests=$1
	shift
	PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$_tests:$_tests/tests \
		/usr/bin/python3 "$guest/unittest_ktap.py" "$@" --dev rxe0 --gid "$rxe_gid"
}
