// SPDX-License-Identifier: GPL-2.0
/*
 * The NIC of p2p_demo: the test NIC, which tells of each page how it reaches it
 */
#include "p2p_demo.h"

static struct p2p_nic nic = { .fd = -1 };
static void *region;
static size_t region_len;
static __u32 handle;

int demo_nic_open(char name[P2P_PCI_NAME], const char **what)
{
	int ret = p2p_nic_open(&nic, 0);

	*what = "cannot open /dev/" P2P_NIC_DRIVER "0";
	return ret ? ret : p2p_pci_name(P2P_NIC_DRIVER, 0, name);
}

int demo_nic_reg(void *addr, size_t len)
{
	region = addr;
	region_len = len;
	return p2p_nic_reg(&nic, addr, len, P2PTEST_NIC_MR_WRITE, &handle);
}

void demo_nic_close(void)
{
	p2p_nic_close(&nic);
}

int demo_nic_write(const void *buf, struct p2ptest_nic_xfer *xfer)
{
	return p2p_nic_write(&nic, handle, region, buf, region_len, xfer);
}

int demo_nic_read(void *buf, struct p2ptest_nic_xfer *xfer)
{
	return p2p_nic_read(&nic, handle, region, buf, region_len, xfer);
}

int demo_nic_query(struct p2ptest_nic_page *pages)
{
	return p2p_nic_query(&nic, handle, region, region_len, pages);
}
