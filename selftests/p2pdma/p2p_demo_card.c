// SPDX-License-Identifier: GPL-2.0
/*
 * The NIC of p2p_demo_card: the test NIC as a card without page faults, which
 * copies between two buffers that are registered once
 */
#include "p2p_demo.h"

#include <errno.h>
#include <string.h>

static struct p2p_nic nic = { .fd = -1 };
static size_t region_len;
static __u32 handle;
/* Host memory: the other side of each copy */
static void *side;
static __u32 side_handle;

int demo_nic_open(char name[P2P_PCI_NAME], const char **what)
{
	int ret = p2p_nic_open(&nic, 0);

	*what = "cannot open /dev/" P2P_NIC_DRIVER "0";
	return ret ? ret : p2p_pci_name(P2P_NIC_DRIVER, 0, name);
}

int demo_nic_reg(void *addr, size_t len)
{
	int ret;

	region_len = len;
	side = p2p_alloc(len);
	if (!side)
		return -ENOMEM;
	ret = p2p_nic_pin(&nic, side, len, P2PTEST_NIC_MR_WRITE, &side_handle);
	return ret ? ret : p2p_nic_pin(&nic, addr, len, P2PTEST_NIC_MR_WRITE,
				       &handle);
}

void demo_nic_close(void)
{
	p2p_nic_close(&nic);
}

static int copy(struct p2ptest_nic_copy copy, struct p2ptest_nic_xfer *xfer)
{
	int ret = p2p_nic_copy(&nic, &copy);

	*xfer = (struct p2ptest_nic_xfer){
		.done = copy.done, .faults = copy.remapped,
	};
	return ret;
}

int demo_nic_write(const void *buf, struct p2ptest_nic_xfer *xfer)
{
	memcpy(side, buf, region_len);
	return copy((struct p2ptest_nic_copy){
		.src = side_handle, .dst = handle, .len = region_len,
	}, xfer);
}

int demo_nic_read(void *buf, struct p2ptest_nic_xfer *xfer)
{
	int ret;

	memset(side, 0, region_len);
	ret = copy((struct p2ptest_nic_copy){
		.src = handle, .dst = side_handle, .len = region_len,
	}, xfer);
	memcpy(buf, side, region_len);
	return ret;
}

int demo_nic_copy(size_t from, size_t to, size_t len,
		  struct p2ptest_nic_xfer *xfer)
{
	return copy((struct p2ptest_nic_copy){
		.src = handle, .src_offset = from,
		.dst = handle, .dst_offset = to, .len = len,
	}, xfer);
}

int demo_nic_query(struct p2ptest_nic_page *pages)
{
	struct p2ptest_nic_pinned pinned = {
		.pages = (uintptr_t)pages,
		.nr = region_len / P2P_PAGE,
		.handle = handle,
	};

	return p2p_ioctl(nic.fd, P2PTEST_NIC_PINNED, &pinned);
}
