# Sourced by a job: whether nvme gave the memory of its disk to P2PDMA, with struct pages.

_size=$(cat /sys/bus/pci/drivers/nvme/*/p2pmem/size)
if [ "$_size" != 16777216 ]; then
	echo "nvme: p2pmem has '$_size' bytes"
	finish 103
fi
