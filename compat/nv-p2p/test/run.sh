#!/bin/sh
# Test nv-p2p in a machine of the harness, built before on the host:
#   make -C build/plain M=$PWD/compat/nv-p2p LD=ld.lld TEST=m W=1e modules
#   T=build/linux/tools/testing/selftests/p2pdma
#   gcc -Wall -Wextra -O2 -Icompat/nv-p2p/test -I$T -Ibuild/plain/usr/include \
#       -o compat/nv-p2p/test/nv_p2p_test compat/nv-p2p/test/nv_p2p_test.c \
#       $T/p2ptest.c $T/p2p_sysfs.c -lpthread
# The machine has p2ptest_gpu loaded and p2ptest_nic not; P2PTEST_EXPECT tells the path.

dir=${0%/*}/..
insmod "$dir/nv_p2p.ko" || exit
insmod "$dir/test/nv_p2p_client.ko" || exit
"$dir/test/nv_p2p_test"
status=$?
# Nothing may be left behind that keeps them.
rmmod nv_p2p_client nv_p2p || status=1
exit $status
