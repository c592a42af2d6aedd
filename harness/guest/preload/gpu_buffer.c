// SPDX-License-Identifier: GPL-2.0
/*
 * gpu_buffer.c - puts an RDMA program's buffer into the test GPU, by LD_PRELOAD
 *
 * For a program that knows of no test GPU, such as perftest, and has one buffer, a
 * memory region with on-demand paging. The program fills the buffer after it has
 * registered it. That would bring the pages home, so they move later: when the
 * queue pair becomes ready to receive, before which no peer can reach them. When
 * the region ends, it is counted what is still in the GPU.
 *
 * On the standard error, a line each; a failure ends the program:
 *
 *	gpu_buffer: moved 32
 *	gpu_buffer: still there 32
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <infiniband/verbs.h>
#include <linux/p2ptest.h>

/* The header makes it a macro that chooses between the two symbols below. */
#undef ibv_reg_mr

#define PAGE	4096UL

static struct {
	struct ibv_mr *mr;
	uintptr_t addr;
	size_t len;
	int gpu;
	int is_moved;
} region;

static void die(const char *what)
{
	fprintf(stderr, "gpu_buffer: %s: %m\n", what);
	exit(99);
}

static void *next(const char *name)
{
	void *symbol = dlsym(RTLD_NEXT, name);

	if (!symbol)
		die(name);
	return symbol;
}

static struct ibv_mr *registered(struct ibv_mr *mr, void *addr, size_t length,
				 unsigned int access)
{
	uintptr_t start = ((uintptr_t)addr + PAGE - 1) & ~(PAGE - 1);
	uintptr_t end = ((uintptr_t)addr + length) & ~(PAGE - 1);

	if (!mr || !(access & IBV_ACCESS_ON_DEMAND))
		return mr;
	if (region.mr || end <= start)
		die("this is not the one buffer");
	region.mr = mr;
	region.addr = start;
	region.len = end - start;
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			  int access)
{
	typeof(ibv_reg_mr) *reg = next("ibv_reg_mr");

	return registered(reg(pd, addr, length, access), addr, length, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	typeof(ibv_reg_mr_iova2) *reg = next("ibv_reg_mr_iova2");

	return registered(reg(pd, addr, length, iova, access), addr, length,
			  access);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	typeof(ibv_modify_qp) *modify = next("ibv_modify_qp");
	struct p2ptest_gpu_migrate move = {
		.addr = region.addr,
		.len = region.len,
		.dir = P2PTEST_GPU_TO_VRAM,
	};

	if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTR &&
	    region.mr && !region.is_moved) {
		region.is_moved = 1;
		region.gpu = open("/dev/p2ptest_gpu0", O_RDWR | O_CLOEXEC);
		if (region.gpu < 0 ||
		    ioctl(region.gpu, P2PTEST_GPU_MIGRATE, &move))
			die("/dev/p2ptest_gpu0");
		fprintf(stderr, "gpu_buffer: moved %llu\n", move.pages);
	}
	return modify(qp, attr, mask);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	typeof(ibv_dereg_mr) *dereg = next("ibv_dereg_mr");
	size_t pages = region.len / PAGE;
	size_t i, there = 0;
	__u64 *locs;

	if (mr == region.mr && region.is_moved) {
		struct p2ptest_gpu_lookup lookup = {
			.addr = region.addr,
			.len = region.len,
		};

		locs = calloc(pages, sizeof(*locs));
		lookup.locs = (uintptr_t)locs;
		if (!locs || ioctl(region.gpu, P2PTEST_GPU_LOOKUP, &lookup))
			die("looking where the pages are");
		for (i = 0; i < pages; i++)
			there += locs[i] < P2PTEST_LOC_OTHER;
		free(locs);
		fprintf(stderr, "gpu_buffer: still there %zu\n", there);
	}
	return dereg(mr);
}
