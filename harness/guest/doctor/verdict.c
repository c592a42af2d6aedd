// SPDX-License-Identifier: GPL-2.0
/*
 * What p2pdma finds for each test GPU and each test NIC, by the page of a GPU that the
 * NIC reads. A line for each pair: the GPU's address, the NIC's, the kernel's name for it.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>

#include "p2ptest.h"

static const char *verdict(const struct p2p_view *view)
{
	if (view->kind[P2PTEST_PAGE_BUS_ADDR])
		return "BUS_ADDR";
	if (view->kind[P2PTEST_PAGE_HOST_BRIDGE])
		return "THRU_HOST_BRIDGE";
	if (view->reason[P2PTEST_REASON_TOPOLOGY])
		return "NOT_SUPPORTED";
	return "?";
}

static int ask(int gpu_id, int nic_id)
{
	char gpu_name[P2P_PCI_NAME], nic_name[P2P_PCI_NAME], data[P2P_PAGE];
	struct p2p_view view = {};
	struct p2p_gpu gpu;
	struct p2p_nic nic;
	__u32 handle;
	char *page;
	int ret = -1;

	if (p2p_pci_name(P2P_GPU_DRIVER, gpu_id, gpu_name) ||
	    p2p_pci_name(P2P_NIC_DRIVER, nic_id, nic_name))
		return -1;
	if (p2p_gpu_open(&gpu, gpu_id))
		return -1;
	if (p2p_nic_open(&nic, nic_id))
		goto close_gpu;
	page = p2p_alloc(P2P_PAGE);
	if (!page)
		goto close_nic;
	p2p_fill(page, 1, 0, P2P_PAGE);
	if (p2p_gpu_to_vram(&gpu, page, P2P_PAGE) != 1)
		goto unmap;
	if (p2p_nic_reg(&nic, page, P2P_PAGE, 0, &handle))
		goto unmap;
	if (!p2p_nic_read(&nic, handle, page, data, P2P_PAGE, NULL) &&
	    !p2p_nic_view(&nic, handle, page, P2P_PAGE, &view)) {
		printf("%s %s %s\n", gpu_name, nic_name, verdict(&view));
		ret = 0;
	}
	p2p_nic_dereg(&nic, handle);
unmap:
	munmap(page, P2P_PAGE);
close_nic:
	p2p_nic_close(&nic);
close_gpu:
	p2p_gpu_close(&gpu);
	return ret;
}

int main(void)
{
	int gpus = p2p_gpu_count(), nics = p2p_nic_count();
	int gpu, nic;

	for (gpu = 0; gpu < gpus; gpu++) {
		for (nic = 0; nic < nics; nic++) {
			if (!ask(gpu, nic))
				continue;
			fprintf(stderr, "GPU %d and NIC %d cannot be tried\n", gpu, nic);
			return 1;
		}
	}
	return 0;
}
