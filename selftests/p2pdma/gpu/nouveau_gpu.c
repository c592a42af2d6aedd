// SPDX-License-Identifier: GPL-2.0
/*
 * The plug-in of nouveau: shared virtual memory of a Pascal GPU. Only a channel
 * could read and write by the GPU.
 */
#include "gpu.h"
#include "../nouveau/nouveau.h"

#include <errno.h>
#include <unistd.h>

static void nouveau_close(struct gpu *gpu)
{
	close(gpu->fd);
	gpu->fd = -1;
}

static int nouveau_gpu_open(struct gpu *gpu, const char *pci_name)
{
	int ret = gpu_open_render(gpu, pci_name);

	if (ret)
		return ret;
	ret = nouveau_svm_init(gpu->fd);
	if (!ret)
		return 0;
	nouveau_close(gpu);
	/* The file is new: nothing but a GPU or a kernel without SVM refuses it */
	gpu_failed(gpu, ret, "no SVM: NOUVEAU_SVM_INIT");
	return -ENODEV;
}

static int nouveau_to_gpu(struct gpu *gpu, void *addr, size_t len)
{
	int ret = nouveau_to_vram(gpu->fd, addr, len);

	return ret ? gpu_failed(gpu, ret, "NOUVEAU_SVM_BIND") : 0;
}

const struct gpu_ops nouveau_gpu_ops = {
	.driver = "nouveau",
	.open = nouveau_gpu_open,
	.close = nouveau_close,
	.to_gpu = nouveau_to_gpu,
};
