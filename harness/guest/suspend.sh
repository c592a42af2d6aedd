# Suspends the machine as far as p2ptest_no_suspend, which comes right after the PCI device in
# $1, and succeeds if it got there and came back.

insmod "$P2PTEST_MODDIR/p2ptest_no_suspend.ko" device="$1" || exit
stats=/sys/power/suspend_stats
read -r before <$stats/failed_suspend
# It fails, as it has to.
echo freeze >/sys/power/state 2>/dev/null
read -r after <$stats/failed_suspend
read -r device <$stats/last_failed_dev
echo "suspend: $before, $after, $device"
rmmod p2ptest_no_suspend || exit
[ "$after" -eq $((before + 1)) ] && [ "$device" = p2ptest_no_suspend ]
