# nv-p2p, which is outside of the kernel tree, and its client, built for this kernel and
# loaded. Sourced by jobs that ask for it, after the test GPU's module was loaded; defines
# the command `nv_p2p`, which prints KTAP.

_source=$guest/../../compat/nv-p2p
_kernel=$P2PTEST_MODDIR/..
_tests=$_kernel/source/tools/testing/selftests/p2pdma
_nv=$out/nv-p2p

must() {
	"$@" && return
	echo "failed: $*"
	finish 103
}

# Warnings are errors.
must cp -r "$_source" "$_nv"
must make -C "$_kernel" M="$_nv" TEST=m W=1e modules
must gcc -Wall -Wextra -O2 -I"$_nv/test" -I"$_tests" -I"$_kernel/usr/include" \
	-o "$_nv/nv_p2p_test" "$_nv/test/nv_p2p_test.c" "$_tests/p2ptest.c" \
	"$_tests/p2p_sysfs.c" -lpthread
must insmod "$_nv/nv_p2p.ko"
must insmod "$_nv/test/nv_p2p_client.ko"

nv_p2p() {
	"$_nv/nv_p2p_test"
	_status=$?
	# They leave nothing behind that keeps them.
	rmmod nv_p2p_client nv_p2p || _status=1
	return $_status
}
