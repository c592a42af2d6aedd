// SPDX-License-Identifier: GPL-2.0
/*
 * p2p_verbs_demo.c - the NIC of ../p2p_demo.c by verbs: a real driver, in the
 * scenarios that the test NIC plays, before the same judge
 *
 * The buffer is a region that pages on demand, and the NIC writes and reads it
 * by RDMA, from and to pinned memory of the same process. Verbs do not tell how
 * a page was reached. The kernel's tracepoint does, page by page. The GPU is that
 * of ../p2p_demo_gpu.c, or of p2p_nouveau_demo.c.
 */
#include "../p2p_demo.h"
#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Models of two devices take 30 ms for a page, and verbs.c waits some seconds */
#define PIECE	(64 * P2P_PAGE)

static struct verbs verbs;
static struct verbs_link link_to_self;
static struct verbs_end region;
static size_t region_len;
static struct p2p_trace trace;
static char pci_name[P2P_PCI_NAME];

int demo_nic_open(char name[P2P_PCI_NAME], const char **what)
{
	int ret;

	*what = verbs_open(&verbs);
	if (*what)
		return -ENOENT;
	/* One that is none has no DMA, so there is nothing to show */
	*what = "the RDMA device is no PCI device";
	ret = verbs_pci_name(&verbs, pci_name);
	if (ret)
		return ret;
	strcpy(name, pci_name);
	*what = "two queue pairs cannot be connected";
	return verbs_link(&verbs, &link_to_self);
}

int demo_nic_reg(void *addr, size_t len)
{
	int ret = p2p_trace_start(&trace);

	if (ret)
		return ret;
	region.p = addr;
	region_len = len;
	region.mr = ibv_reg_mr(verbs.pd, addr, len, VERBS_ODP);
	return region.mr ? 0 : -errno;
}

void demo_nic_close(void)
{
	p2p_trace_stop(&trace);
}

static int transfer(enum ibv_wr_opcode op, void *buf,
		    struct p2ptest_nic_xfer *xfer)
{
	struct verbs_end mine = { .p = buf }, theirs = region;
	int ret = IBV_WC_SUCCESS;
	size_t len;

	memset(xfer, 0, sizeof(*xfer));
	mine.mr = ibv_reg_mr(verbs.pd, buf, region_len, IBV_ACCESS_LOCAL_WRITE);
	if (!mine.mr)
		return -errno;
	while (ret == IBV_WC_SUCCESS && xfer->done < region_len) {
		len = region_len - xfer->done;
		if (len > PIECE)
			len = PIECE;
		mine.p = (char *)buf + xfer->done;
		theirs.p = (char *)region.p + xfer->done;
		ret = verbs_do(&link_to_self, op, mine, theirs, len);
		if (ret == IBV_WC_SUCCESS)
			xfer->done += len;
	}
	if (ret != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion: %s\n", verbs_str(ret));
		ret = ret < 0 ? ret : -EIO;
	}
	ibv_dereg_mr(mine.mr);
	return ret;
}

int demo_nic_write(const void *buf, struct p2ptest_nic_xfer *xfer)
{
	return transfer(IBV_WR_RDMA_WRITE, (void *)buf, xfer);
}

int demo_nic_read(void *buf, struct p2ptest_nic_xfer *xfer)
{
	return transfer(IBV_WR_RDMA_READ, buf, xfer);
}

/* A page of which there is no word was in RAM whenever it was met */
static int view(const void *addr, struct p2ptest_nic_page *page)
{
	__u64 met[P2PTEST_REASON_MAX];
	int reason, ret;

	ret = p2p_trace_count(&trace, pci_name, addr, P2P_PAGE, met);
	if (ret)
		return ret;
	*page = (struct p2ptest_nic_page){ .kind = P2PTEST_PAGE_HOST };
	for (reason = 0; reason < P2PTEST_REASON_MAX; reason++) {
		if (!met[reason])
			continue;
		/* Nothing changes meanwhile that would change the answer */
		if (page->reason)
			return -EBADMSG;
		page->reason = reason;
	}
	if (page->reason == P2PTEST_REASON_BUS_ADDR)
		page->kind = P2PTEST_PAGE_BUS_ADDR;
	else if (page->reason == P2PTEST_REASON_HOST_BRIDGE)
		page->kind = P2PTEST_PAGE_HOST_BRIDGE;
	return 0;
}

int demo_nic_query(struct p2ptest_nic_page *pages)
{
	size_t i, n = region_len / P2P_PAGE;
	int ret = 0;

	for (i = 0; i < n && !ret; i++)
		ret = view((char *)region.p + i * P2P_PAGE, &pages[i]);
	return ret;
}
