// SPDX-License-Identifier: GPL-2.0
/*
 * p2p_nouveau_demo.c - the GPU of ../p2p_demo.c by nouveau, with the NIC of
 * p2p_verbs_demo.c: both are real drivers, before the same judge
 *
 * nouveau moves memory to VRAM when it is asked to, and does not tell where it
 * put a page. It keeps no counter of migrations either: they are counted here,
 * as pages that are in VRAM and were not when somebody looked before, or the
 * other way round. A page that leaves and is back by then is not counted. Only
 * programs of the GPU's own could read by the GPU, so that step is left out.
 */
#include "../p2p_demo.h"
#include "../nouveau/nouveau.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int fd = -1;

/* The buffer, and which of its pages were in VRAM when somebody looked */
static const unsigned char *buffer;
static size_t pages;
static bool *here;
static __u64 migrations;

const bool demo_gpu_offsets;

int demo_gpu_open(int gpu, const char **what)
{
	*what = "there is one GPU of nouveau's at most";
	if (gpu > 0)
		return -ENOENT;
	*what = "cannot open a GPU of nouveau's";
	fd = nouveau_open();
	if (fd < 0)
		return fd == -ENODEV ? -ENOENT : fd;
	return 0;
}

void demo_gpu_close(void)
{
	if (fd >= 0)
		close(fd);
	fd = -1;
}

long demo_gpu_to_vram(int gpu, void *addr, size_t len)
{
	long before = nouveau_resident(addr, len);
	long after;
	int ret;

	(void)gpu;
	if (before < 0)
		return before;
	ret = nouveau_to_vram(fd, addr, len);
	if (ret)
		return ret;
	after = nouveau_resident(addr, len);
	return after < 0 ? after : after - before;
}

static int look(void)
{
	size_t i;
	long ret;

	for (i = 0; i < pages; i++) {
		ret = nouveau_resident(buffer + i * P2P_PAGE, P2P_PAGE);
		if (ret < 0)
			return ret;
		migrations += here[i] != ret;
		here[i] = ret;
	}
	return 0;
}

/* The buffer is the same each time, and all of it */
int demo_gpu_lookup(int gpu, const void *addr, size_t len, __u64 *offsets)
{
	size_t i;
	int ret;

	(void)gpu;
	if (!here) {
		here = calloc(len / P2P_PAGE, sizeof(*here));
		if (!here)
			return -ENOMEM;
		buffer = addr;
		pages = len / P2P_PAGE;
	}
	if (addr != buffer || len != pages * P2P_PAGE)
		return -EINVAL;
	ret = look();
	for (i = 0; !ret && i < pages; i++)
		offsets[i] = here[i] ? 0 : DEMO_GPU_NOT_HERE;
	return ret;
}

int demo_gpu_migrations(int gpu, __u64 *count)
{
	int ret = look();

	(void)gpu;
	*count = migrations;
	return ret;
}

long demo_gpu_read(int gpu, const void *addr, void *buf, size_t len)
{
	(void)gpu;
	(void)addr;
	(void)buf;
	(void)len;
	return -EOPNOTSUPP;
}
