/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the benchmark asks of its module: fault a range as a device driver would
 * and say what that took.
 */
#ifndef HMM_BENCH_H
#define HMM_BENCH_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define BENCH_FAULT	(1U << 0)	/* HMM_PFN_REQ_FAULT; else a snapshot */
#define BENCH_P2P_OK	(1U << 1)	/* HMM_PFN_REQ_TRY_P2P for the NIC */
#define BENCH_MAP	(1U << 2)	/* map for the NIC, and unmap again */
#define BENCH_MAP_RANGE	(1U << 3)	/* the same, all pages by one call */
#define BENCH_KEEP	(1U << 4)	/* leave them mapped for the MMU notifier */
#define BENCH_SPAN_FAULT (1U << 5)	/* hmm_range_fault() is the span 1 */
#define BENCH_SPAN_MAP	(1U << 6)	/* mapping is 2, or 3 with MAP_RANGE */
#define BENCH_LOOK_UP	(1U << 7)	/* with MAP: @map is a second mapping */
#define BENCH_HOME	(1U << 8)	/* no walk: fault every second page in */

/*
 * Begins the span @n, or ends it if that is 0: see spans in qemu/bench.toml. A
 * NOP, which a plugin of QEMU recognizes.
 */
#define SPAN(n) \
	asm volatile(".byte 0x0f, 0x1f, 0x84, 0x00, " #n ", 0xc0, 0xde, 0x5a" \
		     ::: "memory")

/**
 * struct hmm_bench - one call of hmm_range_fault()
 * @addr: user address, page aligned
 * @pages: number of pages
 * @flags: BENCH_*
 * @rounds: how often; each figure is the least of all rounds
 * @run: 0, or map runs of as many pages, the last one first
 * @pad: zero
 * @fault: (out) clock ticks of hmm_range_fault()
 * @all: (out) the same with the calls before, whose result was invalidated
 * @calls: (out) how many calls that were, in the last round
 * @map: (out) clock ticks to map all pages, with their DMA addresses
 * @unmap: (out) clock ticks to unmap all pages
 * @host: (out) pages that were found in host memory
 * @alias: (out) pages whose alias was found
 * @runs: (out) runs of adjacent addresses
 *
 * With BENCH_KEEP, which goes with BENCH_MAP, @rounds is 1. The MMU notifier unmaps
 * all pages when any page is invalidated; close() ends the registration. A file
 * descriptor takes one such call.
 *
 * With BENCH_LOOK_UP, which goes with BENCH_MAP, the pages are mapped twice, and @map
 * counts the second time. With BENCH_MAP_RANGE as well, a call takes as many pages as
 * in mlx5.
 *
 * With BENCH_HOME nothing is walked: @all is what handle_mm_fault() takes for every
 * second page, from the second one on.
 *
 * A tick is an instruction where QEMU counts them with -icount shift=0.
 */
struct hmm_bench {
	__u64 addr;
	__u64 pages;
	__u32 flags;
	__u32 rounds;
	__u32 run;
	__u32 pad;
	__u64 fault;
	__u64 all;
	__u64 calls;
	__u64 map;
	__u64 unmap;
	__u64 host;
	__u64 alias;
	__u64 runs;
};

/* ARRAY_SIZE(addrs) in populate_mtt() of mlx5 */
#define BENCH_LOOK_UP_PAGES	64

#define HMM_BENCH	_IOWR('B', 0, struct hmm_bench)

#endif
