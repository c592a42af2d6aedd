// SPDX-License-Identifier: GPL-2.0
/*
 * The plug-in of the test GPU, of which peers may reach all memory
 */
#include "gpu.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static struct p2p_gpu device(const struct gpu *gpu)
{
	return (struct p2p_gpu){ .fd = gpu->fd };
}

static void p2ptest_close(struct gpu *gpu)
{
	close(gpu->fd);
	gpu->fd = -1;
}

/* Its number, or P2P_MAX_DEVS */
static int number(const char *pci_name)
{
	char name[P2P_PCI_NAME];
	int id;

	for (id = 0; pci_name && id < P2P_MAX_DEVS; id++) {
		if (!p2p_pci_name(P2P_GPU_DRIVER, id, name) &&
		    !strcmp(name, pci_name))
			break;
	}
	return pci_name ? id : 0;
}

static int p2ptest_open(struct gpu *gpu, const char *pci_name)
{
	struct p2ptest_gpu_info info;
	struct p2p_gpu dev;
	int ret;

	ret = p2p_gpu_open(&dev, number(pci_name));
	if (ret)
		return gpu_not_opened(gpu, ret, "/dev/" P2P_GPU_DRIVER "<N>");
	gpu->fd = dev.fd;
	/* The window is fixed while pages of some process are there */
	ret = p2p_gpu_wait_used(&dev, 0);
	if (!ret)
		ret = p2p_gpu_info(&dev, &info);
	if (ret) {
		gpu_failed(gpu, ret, "P2PTEST_GPU_INFO");
		goto close;
	}
	ret = p2p_gpu_window(&dev, 0, info.vram_size);
	if (ret) {
		gpu_failed(gpu, ret, "P2PTEST_GPU_WINDOW");
		goto close;
	}
	return 0;

close:
	p2ptest_close(gpu);
	return ret;
}

static int p2ptest_to_gpu(struct gpu *gpu, void *addr, size_t len)
{
	const struct p2p_gpu dev = device(gpu);
	long ret = p2p_gpu_to_vram(&dev, addr, len);

	return ret < 0 ? gpu_failed(gpu, ret, "P2PTEST_GPU_MIGRATE") : 0;
}

static long p2ptest_resident(struct gpu *gpu, const void *addr, size_t len)
{
	const struct p2p_gpu dev = device(gpu);

	return p2p_gpu_resident(&dev, addr, len);
}

static int p2ptest_read(struct gpu *gpu, const void *addr, void *buf,
			size_t len)
{
	const struct p2p_gpu dev = device(gpu);
	long ret = p2p_gpu_read(&dev, addr, buf, len);

	return ret < 0 ? gpu_failed(gpu, ret, "P2PTEST_GPU_ACCESS") : 0;
}

static int p2ptest_write(struct gpu *gpu, void *addr, const void *buf,
			 size_t len)
{
	const struct p2p_gpu dev = device(gpu);
	long ret = p2p_gpu_write(&dev, addr, buf, len);

	return ret < 0 ? gpu_failed(gpu, ret, "P2PTEST_GPU_ACCESS") : 0;
}

const struct gpu_ops p2ptest_gpu_ops = {
	.driver = "p2ptest",
	.open = p2ptest_open,
	.close = p2ptest_close,
	.to_gpu = p2ptest_to_gpu,
	.resident = p2ptest_resident,
	.read = p2ptest_read,
	.write = p2ptest_write,
};
