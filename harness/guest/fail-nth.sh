# Sourced by a job: a task may ask that its next allocation fails, or the one after it, by
# /proc/thread-self/fail-nth. Without this, only those fail that can not wait.

for _attr in failslab/ignore-gfp-wait fail_page_alloc/ignore-gfp-wait \
	fail_page_alloc/ignore-gfp-highmem; do
	echo N >"/sys/kernel/debug/$_attr" || finish 105
done
echo 0 >/sys/kernel/debug/fail_page_alloc/min-order
# The kernel's log is for what should not be.
echo 0 >/sys/kernel/debug/failslab/verbose
echo 0 >/sys/kernel/debug/fail_page_alloc/verbose
export P2PTEST_FAIL_NTH=1
