# nv-p2p, which is outside of the kernel tree, and its client. Sourced by jobs that ask for
# it, after the test GPU's module was loaded; defines the command `nv_p2p`, which prints
# KTAP.

_built=$P2PTEST_MODDIR/../guest
for _module in nv-p2p/nv_p2p nv-p2p/test/nv_p2p_client; do
	insmod "$_built/$_module.ko" && continue
	echo "failed: insmod $_module"
	finish 104
done

nv_p2p() {
	"$_built/nv_p2p_test"
	_status=$?
	# They leave nothing behind that keeps them.
	rmmod nv_p2p_client nv_p2p || _status=1
	return $_status
}
