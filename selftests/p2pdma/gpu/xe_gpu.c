// SPDX-License-Identifier: GPL-2.0
/*
 * The plug-in of xe: a VM with page faults, all of whose addresses mirror those
 * of the process
 *
 * xe moves ranges of 2 MiB, 64 KiB or 4 KiB, the largest that has the address and
 * is in one mapping of the process: more may move than was asked for. A page
 * that the CPU touches takes the others of its range home.
 */
#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <drm/xe_drm.h>

/* A PAT index that compresses is refused; on Battlemage this one does not */
#define PAT_INDEX	0

static void xe_close(struct gpu *gpu)
{
	close(gpu->fd);
	gpu->fd = -1;
}

/* What the device tells, with @min bytes at least; to be freed. NULL: see why */
static void *query(struct gpu *gpu, __u32 what, size_t min, int *ret)
{
	struct drm_xe_device_query args = { .query = what };
	void *data;

	*ret = gpu_ioctl(gpu, gpu->fd, DRM_IOCTL_XE_DEVICE_QUERY, &args,
			 "XE_DEVICE_QUERY");
	if (*ret)
		return NULL;
	if (args.size < min) {
		*ret = gpu_failed(gpu, -EBADMSG, "XE_DEVICE_QUERY");
		return NULL;
	}
	data = calloc(1, args.size);
	if (!data) {
		*ret = gpu_failed(gpu, -ENOMEM, "XE_DEVICE_QUERY");
		return NULL;
	}
	args.data = (uintptr_t)data;
	*ret = gpu_ioctl(gpu, gpu->fd, DRM_IOCTL_XE_DEVICE_QUERY, &args,
			 "XE_DEVICE_QUERY");
	if (*ret) {
		free(data);
		return NULL;
	}
	return data;
}

/* Size of the address space, if the GPU can mirror a process */
static int query_config(struct gpu *gpu, __u64 *size)
{
	const size_t min = sizeof(struct drm_xe_query_config) +
		(DRM_XE_QUERY_CONFIG_VA_BITS + 1) * sizeof(__u64);
	struct drm_xe_query_config *config;
	__u64 flags;
	int ret;

	config = query(gpu, DRM_XE_DEVICE_QUERY_CONFIG, min, &ret);
	if (!config)
		return ret;
	flags = config->info[DRM_XE_QUERY_CONFIG_FLAGS];
	*size = 1ULL << config->info[DRM_XE_QUERY_CONFIG_VA_BITS];
	free(config);
	if (!(flags & DRM_XE_QUERY_CONFIG_FLAG_HAS_CPU_ADDR_MIRROR))
		return gpu_absent(gpu, "the GPU or the kernel has no SVM");
	return 0;
}

static int query_vram(struct gpu *gpu)
{
	struct drm_xe_query_mem_regions *regions;
	int ret;
	__u32 i;

	regions = query(gpu, DRM_XE_DEVICE_QUERY_MEM_REGIONS, sizeof(*regions),
			&ret);
	if (!regions)
		return ret;
	ret = -ENODEV;
	for (i = 0; ret && i < regions->num_mem_regions; i++) {
		if (regions->mem_regions[i].mem_class !=
		    DRM_XE_MEM_REGION_CLASS_VRAM)
			continue;
		gpu->xe.vram = regions->mem_regions[i].instance;
		ret = 0;
	}
	free(regions);
	return ret ? gpu_absent(gpu, "the GPU has no memory of its own") : 0;
}

static int bind(struct gpu *gpu, const struct drm_xe_vm_bind_op *op,
		const char *what)
{
	struct drm_xe_vm_bind args = {
		.vm_id = gpu->xe.vm,
		.num_binds = 1,
		.bind = *op,
	};

	return gpu_ioctl(gpu, gpu->fd, DRM_IOCTL_XE_VM_BIND, &args, what);
}

static int xe_open(struct gpu *gpu, const char *pci_name)
{
	struct drm_xe_vm_create args = {
		.flags = DRM_XE_VM_CREATE_FLAG_LR_MODE |
			 DRM_XE_VM_CREATE_FLAG_FAULT_MODE,
	};
	struct drm_xe_vm_bind_op mirror = {
		.op = DRM_XE_VM_BIND_OP_MAP,
		.flags = DRM_XE_VM_BIND_FLAG_CPU_ADDR_MIRROR,
		.pat_index = PAT_INDEX,
	};
	__u64 size = 0;
	int ret;

	ret = gpu_open_render(gpu, pci_name);
	if (ret)
		return ret;
	ret = query_config(gpu, &size);
	if (!ret)
		ret = query_vram(gpu);
	if (!ret)
		ret = gpu_ioctl(gpu, gpu->fd, DRM_IOCTL_XE_VM_CREATE, &args,
				"XE_VM_CREATE");
	if (!ret) {
		gpu->xe.vm = args.vm_id;
		mirror.range = size;
		ret = bind(gpu, &mirror, "XE_VM_BIND, MAP");
	}
	/* The VM goes with the file */
	if (ret)
		xe_close(gpu);
	return ret;
}

static int xe_to_gpu(struct gpu *gpu, void *addr, size_t len)
{
	struct drm_xe_vm_bind_op op = {
		.op = DRM_XE_VM_BIND_OP_PREFETCH,
		.addr = (uintptr_t)addr,
		.range = len,
		.pat_index = PAT_INDEX,
		.prefetch_mem_region_instance = gpu->xe.vram,
	};

	return bind(gpu, &op, "XE_VM_BIND, PREFETCH");
}

/* In the part of the memory that is in the BAR, so that peers reach it */
static int xe_dma_buf(struct gpu *gpu, size_t len)
{
	struct drm_xe_gem_create args = {
		.size = len,
		.placement = 1U << gpu->xe.vram,
		.flags = DRM_XE_GEM_CREATE_FLAG_NEEDS_VISIBLE_VRAM,
		.cpu_caching = DRM_XE_GEM_CPU_CACHING_WC,
	};
	struct drm_prime_handle prime = { .flags = DRM_CLOEXEC | DRM_RDWR };
	struct drm_gem_close gem = {};
	int ret;

	ret = gpu_ioctl(gpu, gpu->fd, DRM_IOCTL_XE_GEM_CREATE, &args,
			"XE_GEM_CREATE");
	if (ret)
		return ret;
	prime.handle = args.handle;
	ret = gpu_ioctl(gpu, gpu->fd, DRM_IOCTL_PRIME_HANDLE_TO_FD, &prime,
			"PRIME_HANDLE_TO_FD");
	/* From here on the memory is the file's */
	gem.handle = args.handle;
	p2p_ioctl(gpu->fd, DRM_IOCTL_GEM_CLOSE, &gem);
	return ret ? ret : prime.fd;
}

const struct gpu_ops xe_gpu_ops = {
	.driver = "xe",
	.open = xe_open,
	.close = xe_close,
	.to_gpu = xe_to_gpu,
	.dma_buf = xe_dma_buf,
};
