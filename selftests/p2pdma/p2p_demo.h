/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_demo.h - what p2p_demo.c wants of a NIC, and of GPUs
 *
 * A program has one NIC with one region: the test NIC of p2p_demo_nic.c, or
 * the NIC of verbs/p2p_verbs_demo.c. Its GPUs are of one kind: the test GPU of
 * p2p_demo_gpu.c, or the GPU of verbs/p2p_nouveau_demo.c. Functions return 0 or
 * a negative errno; those that return long return a count if they succeed.
 */
#ifndef P2P_DEMO_H
#define P2P_DEMO_H

#include "p2ptest.h"

/* Tell its PCI name. If it fails: what did, and -ENOENT if there is no NIC */
int demo_nic_open(char name[P2P_PCI_NAME], const char **what);
/* Register the buffer; from now on the NIC can be asked how it reached pages */
int demo_nic_reg(void *addr, size_t len);
void demo_nic_close(void);

/* @buf to the buffer, and the buffer to @buf, by DMA. @xfer: what is known of it */
int demo_nic_write(const void *buf, struct p2ptest_nic_xfer *xfer);
int demo_nic_read(void *buf, struct p2ptest_nic_xfer *xfer);
/*
 * Copy @len bytes from byte @from of the buffer to byte @to, with nothing in between
 * that is not the NIC's. Only NICs that can have this function.
 */
int demo_nic_copy(size_t from, size_t to, size_t len,
		  struct p2ptest_nic_xfer *xfer);
#pragma weak demo_nic_copy
/* How it reaches each page of the buffer after a DMA, and why */
int demo_nic_query(struct p2ptest_nic_page *pages);

/* Does demo_gpu_lookup() tell where in VRAM a page is? */
extern const bool demo_gpu_offsets;

/* GPUs are numbered from 0. If it fails: what did, and -ENOENT if there is none */
int demo_gpu_open(int gpu, const char **what);
/* All of them */
void demo_gpu_close(void);

/* How many pages moved */
long demo_gpu_to_vram(int gpu, void *addr, size_t len);

#define DEMO_GPU_NOT_HERE	(~0ULL)

/*
 * By page: its offset in VRAM of this GPU, DEMO_GPU_NOT_HERE if it is not there,
 * and anything else if it is there and the GPU does not tell offsets
 */
int demo_gpu_lookup(int gpu, const void *addr, size_t len, __u64 *offsets);
/*
 * The address by which peers reach the page at @offset. Only GPUs have it of which
 * demo_gpu_offsets is true.
 */
int demo_gpu_phys(int gpu, __u64 offset, __u64 *phys);
#pragma weak demo_gpu_phys
/* How many pages have moved so far, to VRAM or from it */
int demo_gpu_migrations(int gpu, __u64 *count);
/*
 * How many pages the GPU read in VRAM; -EOPNOTSUPP if nobody can have it read,
 * and then the scenarios do without
 */
long demo_gpu_read(int gpu, const void *addr, void *buf, size_t len);

#endif /* P2P_DEMO_H */
