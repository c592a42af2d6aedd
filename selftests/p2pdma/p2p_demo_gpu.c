// SPDX-License-Identifier: GPL-2.0
/*
 * The GPUs of p2p_demo: test GPUs, which tell where in VRAM a page is
 */
#include "p2p_demo.h"

#include <errno.h>
#include <stdio.h>

static struct p2p_gpu gpus[P2P_MAX_DEVS] = {
	[0 ... P2P_MAX_DEVS - 1] = { .fd = -1 },
};

const bool demo_gpu_offsets = true;

int demo_gpu_open(int gpu, const char **what)
{
	static char text[64];

	snprintf(text, sizeof(text), "cannot open /dev/" P2P_GPU_DRIVER "%d",
		 gpu);
	*what = text;
	return p2p_gpu_open(&gpus[gpu], gpu);
}

void demo_gpu_close(void)
{
	int i;

	for (i = 0; i < P2P_MAX_DEVS; i++)
		p2p_gpu_close(&gpus[i]);
}

long demo_gpu_to_vram(int gpu, void *addr, size_t len)
{
	return p2p_gpu_to_vram(&gpus[gpu], addr, len);
}

int demo_gpu_lookup(int gpu, const void *addr, size_t len, __u64 *offsets)
{
	int ret = p2p_gpu_lookup(&gpus[gpu], addr, len, offsets);
	size_t i;

	for (i = 0; !ret && i < len / P2P_PAGE; i++)
		offsets[i] = p2p_loc_is_vram(offsets[i]) ?
				     p2p_loc_offset(offsets[i]) :
				     DEMO_GPU_NOT_HERE;
	return ret;
}

int demo_gpu_phys(int gpu, __u64 offset, __u64 *phys)
{
	__u64 start, end;
	int ret = p2p_gpu_bar(&gpus[gpu], &start, &end);

	if (ret)
		return ret;
	*phys = start + offset;
	return *phys < end ? 0 : -ERANGE;
}

int demo_gpu_migrations(int gpu, __u64 *count)
{
	struct p2ptest_gpu_info info;
	int ret = p2p_gpu_info(&gpus[gpu], &info);

	if (!ret)
		*count = info.migrated_in + info.migrated_out;
	return ret;
}

long demo_gpu_read(int gpu, const void *addr, void *buf, size_t len)
{
	return p2p_gpu_read(&gpus[gpu], addr, buf, len);
}
