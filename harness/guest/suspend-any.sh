# Sourced by a job: a way to suspend any PCI device with the machine.

echo 0 >/sys/power/pm_async
export P2PTEST_SUSPEND="sh $guest/suspend.sh"
