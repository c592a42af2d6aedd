// SPDX-License-Identifier: GPL-2.0
/*
 * Counts instructions; runs in the guest, as root, on the base and on the
 * series. Each line of output is a JSON object: a case, a number of pages, and
 * what the case took. The host makes quotients of it.
 *
 * usage: bench ram | p2p | callback
 *
 * ram: on the base, with test_hmm
 * callback: on the base with qemu/kernel/callback.patch, with test_hmm
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <lib/test_hmm_uapi.h>
#include <linux/p2ptest.h>

#include "hmm_bench.h"
#include "p2p_cache.h"

#define PAGE		4096UL
#define HUGE		(2UL << 20)
#define HUGE_PAGES	(HUGE / PAGE)
#define ROUNDS		5
#define NIC_PAGES	256UL
#define REFUSED_PAGES	((64UL << 20) / PAGE)
#define REFUSED_ROUNDS	3

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

static int bench_fd, gpu_fd, nic_fd, dmirror_fd = -1;

static int open_it(const char *path)
{
	int fd = open(path, O_RDWR);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static uint64_t ticks(void)
{
	uint32_t low, high;

	asm volatile("lfence; rdtsc" : "=a"(low), "=d"(high) :: "memory");
	return low | (uint64_t)high << 32;
}

static void say(const char *what, unsigned long pages, uint64_t count)
{
	printf("{\"case\":\"%s\",\"pages\":%lu,\"count\":%llu}\n", what, pages,
	       (unsigned long long)count);
	fflush(stdout);
}

/* Aligned to 2 MiB */
static char *reserve(size_t len)
{
	char *p = mmap(NULL, len + HUGE, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap of %zu bytes", len);
	return (char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
}

static char *anonymous(size_t len, bool huge)
{
	char *p = mmap(reserve(len), len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	size_t at;

	if (p == MAP_FAILED)
		err(1, "mmap of %zu bytes", len);
	if (madvise(p, len, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		err(1, "madvise");
	for (at = 0; at < len; at += PAGE)
		p[at] = 1;
	if (huge && madvise(p, len, MADV_COLLAPSE))
		err(1, "no huge pages");
	return p;
}

static struct hmm_bench fault_runs(char *p, unsigned long pages,
				   unsigned int flags, unsigned int rounds,
				   unsigned int run)
{
	struct hmm_bench args = {
		.addr = (uintptr_t)p,
		.pages = pages,
		.flags = flags,
		.rounds = rounds,
		.run = run,
	};

	if (ioctl(bench_fd, HMM_BENCH, &args))
		err(1, "fault of %lu pages, flags %x", pages, flags);
	return args;
}

static struct hmm_bench fault(char *p, unsigned long pages, unsigned int flags,
			      unsigned int rounds)
{
	return fault_runs(p, pages, flags, rounds, 0);
}

static void found(const struct hmm_bench *args, uint64_t host, uint64_t alias)
{
	if (args->host != host || args->alias != alias)
		errx(1, "of %llu pages, %llu are in host memory and %llu have an alias",
		     args->pages, args->host, args->alias);
}

/* Two sizes of everything, so that what is paid once per call can be taken out */
static const unsigned long sizes[] = { 1024, 2048 };
static const unsigned long huge_sizes[] = { 8 * HUGE_PAGES, 16 * HUGE_PAGES };

/*
 * Pages that were found as @flags say, mapped by one call, in runs of 1, 8, 64
 * and 512 pages
 */
static void map_range(const char *what, char *h, unsigned int flags)
{
	const unsigned int runs[] = { 1, 8, 64, HUGE_PAGES };
	struct hmm_bench args;
	char name[64];
	unsigned int r;
	int i;

	flags |= BENCH_MAP | BENCH_MAP_RANGE;
	for (i = 0; i < 2; i++) {
		for (r = 0; r < sizeof(runs) / sizeof(*runs); r++) {
			args = fault_runs(h, huge_sizes[i], flags, ROUNDS,
					  runs[r]);
			snprintf(name, sizeof(name), "map_%s_by_%u", what,
				 runs[r]);
			say(name, huge_sizes[i], args.map);
			snprintf(name, sizeof(name), "unmap_%s_by_%u", what,
				 runs[r]);
			say(name, huge_sizes[i], args.unmap);
		}
	}
}

/* Looks up the DMA addresses of pages that are mapped, in a row and in no order */
static void look_up(const char *what, char *h, unsigned int flags, bool ranges)
{
	const unsigned int look = flags | BENCH_MAP | BENCH_LOOK_UP;
	struct hmm_bench args;
	char name[64];
	int i;

	for (i = 0; i < 2; i++) {
		args = fault(h, huge_sizes[i], look, ROUNDS);
		snprintf(name, sizeof(name), "look_up_%s_each", what);
		say(name, huge_sizes[i], args.map);
		if (!ranges)
			continue;
		args = fault(h, huge_sizes[i], look | BENCH_MAP_RANGE, ROUNDS);
		snprintf(name, sizeof(name), "look_up_%s", what);
		say(name, huge_sizes[i], args.map);
		args = fault_runs(h, huge_sizes[i], look | BENCH_MAP_RANGE,
				  ROUNDS, 1);
		snprintf(name, sizeof(name), "look_up_%s_no_order", what);
		say(name, huge_sizes[i], args.map);
	}
}

/* To the memory of test_hmm, which also copies what it moved to @ptr */
static void migrate_dmirror(char *p, size_t len)
{
	char *copy = malloc(len);
	struct hmm_dmirror_cmd cmd = {
		.addr = (uintptr_t)p,
		.ptr = (uintptr_t)copy,
		.npages = len / PAGE,
	};

	if (!copy || ioctl(dmirror_fd, HMM_DMIRROR_MIGRATE_TO_DEV, &cmd) ||
	    cmd.cpages != cmd.npages)
		err(1, "%llu of %zu pages moved to test_hmm", cmd.cpages,
		    len / PAGE);
	free(copy);
}

static void migrate(char *p, size_t len)
{
	struct p2ptest_gpu_migrate args = {
		.addr = (uintptr_t)p,
		.len = len,
		.dir = P2PTEST_GPU_TO_VRAM,
	};

	if (dmirror_fd >= 0)
		return migrate_dmirror(p, len);
	if (ioctl(gpu_fd, P2PTEST_GPU_MIGRATE, &args) ||
	    args.pages != len / PAGE)
		err(1, "%llu of %zu pages moved to VRAM", args.pages,
		    len / PAGE);
}

/*
 * What else the kernel does now and then, and what it finds in its caches, makes
 * a count larger, never smaller: of several, the least is what it takes.
 */
static void keep_least(uint64_t *least, uint64_t count)
{
	if (count < *least)
		*least = count;
}

/*
 * What it takes to take a huge page away that is registered and mapped: the page
 * stays where it is, so that no driver has to free memory
 */
static void invalidation(const char *name, unsigned int flags)
{
	const bool peer = flags & BENCH_P2P_OK;
	uint64_t least = UINT64_MAX;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		char *p = anonymous(HUGE, true);
		struct hmm_bench args = {
			.addr = (uintptr_t)p,
			.pages = HUGE_PAGES,
			.flags = flags | BENCH_FAULT | BENCH_MAP | BENCH_KEEP,
			.rounds = 1,
		};
		int fd = open_it("/dev/hmm_bench");
		uint64_t start;

		if (peer)
			migrate(p, HUGE);
		if (ioctl(fd, HMM_BENCH, &args))
			err(1, "registration, flags %x", args.flags);
		found(&args, peer ? 0 : HUGE_PAGES, peer ? HUGE_PAGES : 0);
		start = ticks();
		if (mprotect(p, HUGE, PROT_READ))
			err(1, "mprotect");
		keep_least(&least, ticks() - start);
		close(fd);
		munmap(p, HUGE);
	}
	say(name, HUGE_PAGES, least);
}

/* Every second page is there, and the others are faulted in, which changes no other */
static uint64_t alternating(unsigned long pages, bool peer)
{
	uint64_t least = UINT64_MAX;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		char *p = anonymous(pages * PAGE, false);
		struct hmm_bench args;
		unsigned long i;

		if (peer)
			migrate(p, pages * PAGE);
		for (i = 1; i < pages; i += 2)
			if (madvise(p + i * PAGE, PAGE, MADV_DONTNEED))
				err(1, "MADV_DONTNEED");
		args = fault(p, pages,
			     BENCH_FAULT | (peer ? BENCH_P2P_OK : 0), 1);
		found(&args, peer ? pages / 2 : pages, peer ? pages / 2 : 0);
		keep_least(&least, args.all);
		munmap(p, pages * PAGE);
	}
	return least;
}

/* Peers can reach that much of the GPU's memory, from its begin */
static void reach(uint64_t size)
{
	const struct p2ptest_gpu_window window = { .size = size };

	if (ioctl(gpu_fd, P2PTEST_GPU_WINDOW, &window))
		err(1, "window of %llu bytes", window.size);
}

/*
 * Every second page is in the GPU where the NIC can not reach it. The others are
 * in the GPU where it can, or in host memory if that is test_hmm.
 */
static char *interleaved(void)
{
	char *p = anonymous(REFUSED_PAGES * PAGE, false);
	unsigned long i;

	/* The GPU gives the first page that is free: peers reach the first half */
	for (i = 0; dmirror_fd < 0 && i < REFUSED_PAGES; i += 2)
		migrate(p + i * PAGE, PAGE);
	for (i = 1; i < REFUSED_PAGES; i += 2)
		migrate(p + i * PAGE, PAGE);
	return p;
}

/*
 * The walk brings every second page home. That invalidates the range, so that
 * hmm_range_fault() is called again, once for each PMD. The faults of the same pages
 * without a walk are counted, too: the difference is the walk.
 */
static void alternating_refused(void)
{
	const unsigned long half = REFUSED_PAGES / 2;
	const unsigned long alias = dmirror_fd < 0 ? half : 0;
	const unsigned int flags = BENCH_FAULT | (alias ? BENCH_P2P_OK : 0);
	uint64_t all = UINT64_MAX, home = UINT64_MAX, calls = 0;
	struct p2ptest_gpu_info info;
	struct hmm_bench args;
	int round;
	char *p;

	if (alias) {
		if (ioctl(gpu_fd, P2PTEST_GPU_INFO, &info))
			err(1, "GPU");
		if (info.vram_size < REFUSED_PAGES * PAGE)
			errx(1, "%llu bytes of VRAM", info.vram_size);
		reach(half * PAGE);
	}
	for (round = 0; round < REFUSED_ROUNDS; round++) {
		p = interleaved();
		if (alias)
			SPAN(7);
		else
			SPAN(3);
		args = fault(p, REFUSED_PAGES, flags, 1);
		SPAN(0);
		found(&args, REFUSED_PAGES - alias, alias);
		keep_least(&all, args.all);
		calls = args.calls;
		munmap(p, REFUSED_PAGES * PAGE);

		p = interleaved();
		args = fault(p, REFUSED_PAGES, BENCH_HOME, 1);
		keep_least(&home, args.all);
		args = fault(p, REFUSED_PAGES, flags, 1);
		found(&args, REFUSED_PAGES - alias, alias);
		if (args.calls != 1)
			errx(1, "not all refused pages were home");
		munmap(p, REFUSED_PAGES * PAGE);
	}
	if (alias)
		reach(info.window_size);
	say("alternating_refused", REFUSED_PAGES, all);
	say("alternating_refused_calls", REFUSED_PAGES, calls);
	say("refused_home", REFUSED_PAGES, home);
}

/*
 * For the profile: faults of one page, and mappings of pages in no order, one by one
 * and by one call
 */
static void profiled(char *p, char *h, bool ranges)
{
	const unsigned int flags = BENCH_FAULT | BENCH_MAP | BENCH_SPAN_MAP;
	struct hmm_bench args;

	args = fault(p, 1, BENCH_FAULT | BENCH_SPAN_FAULT, ROUNDS);
	found(&args, 1, 0);
	say("fault_one", 1, args.fault);
	args = fault_runs(h, HUGE_PAGES, flags, ROUNDS, 1);
	found(&args, HUGE_PAGES, 0);
	say("map_each", HUGE_PAGES, args.map);
	if (!ranges)
		return;
	args = fault_runs(h, HUGE_PAGES, flags | BENCH_MAP_RANGE, ROUNDS, 1);
	say("map_no_order", HUGE_PAGES, args.map);
}

static void ram(bool ranges)
{
	char *p = anonymous(sizes[1] * PAGE, false);
	char *h = anonymous(huge_sizes[1] * PAGE, true);
	struct hmm_bench args;
	int i;

	for (i = 0; i < 2; i++) {
		args = fault(p, sizes[i], 0, ROUNDS);
		found(&args, sizes[i], 0);
		say("snapshot_4k", sizes[i], args.fault);
		args = fault(p, sizes[i], BENCH_FAULT, ROUNDS);
		say("fault_4k", sizes[i], args.fault);
		args = fault(p, sizes[i], BENCH_FAULT | BENCH_MAP, ROUNDS);
		say("map_ram", sizes[i], args.map);
		say("unmap_ram", sizes[i], args.unmap);
		args = fault(h, huge_sizes[i], BENCH_FAULT, ROUNDS);
		found(&args, huge_sizes[i], 0);
		say("fault_2m", huge_sizes[i], args.fault);
		say("alternating_ram", sizes[i], alternating(sizes[i], false));
	}
	profiled(p, h, ranges);
	look_up("ram", h, BENCH_FAULT, ranges);
	invalidation("invalidate_ram_each", 0);
	if (ranges) {
		invalidation("invalidate_ram", BENCH_MAP_RANGE);
		map_range("ram", h, BENCH_FAULT);
	}
	munmap(p, sizes[1] * PAGE);
	munmap(h, huge_sizes[1] * PAGE);
}

/* 16 GiB of addresses that share 1 GiB of memory: half of the machine's */
static void range(void)
{
	const size_t file_len = 1UL << 30, len = 16UL << 30;
	int fd = memfd_create("bench", 0);
	struct hmm_bench args;
	char *p = reserve(len);
	size_t at;

	if (fd < 0 || ftruncate(fd, file_len))
		err(1, "memfd");
	for (at = 0; at < len; at += file_len)
		if (mmap(p + at, file_len, PROT_READ,
			 MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd,
			 0) == MAP_FAILED)
			err(1, "mmap at %zu", at);
	for (at = PAGE; at <= len; at *= 4) {
		args = fault(p, at / PAGE, 0, at > (1UL << 30) ? 1 : ROUNDS);
		found(&args, at / PAGE, 0);
		say("range", at / PAGE, args.fault);
	}
	munmap(p, len);
	close(fd);
}

static uint64_t home_and_back(char *p, unsigned long pages)
{
	uint64_t least = UINT64_MAX;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		uint64_t start = ticks();
		struct hmm_bench args = fault(p, pages, BENCH_FAULT, 1);

		found(&args, pages, 0);
		migrate(p, pages * PAGE);
		keep_least(&least, ticks() - start);
	}
	return least;
}

static const unsigned int peer = BENCH_FAULT | BENCH_P2P_OK;

/* Pages of 4 KiB where they are */
static void alias_small(char *p, unsigned long pages)
{
	struct hmm_bench args = fault(p, pages, peer, ROUNDS);

	found(&args, 0, pages);
	say("alias_4k", pages, args.fault);
	args = fault(p, pages, peer | BENCH_MAP, ROUNDS);
	say("map_alias", pages, args.map);
	say("unmap_alias", pages, args.unmap);
	say("alias_4k_runs", pages, args.runs);
}

/* As alias(), by the callback of an earlier series */
static void callback(void)
{
	char *p = anonymous(sizes[1] * PAGE, false);
	int i;

	dmirror_fd = open_it("/dev/hmm_dmirror0");
	migrate(p, sizes[1] * PAGE);
	for (i = 0; i < 2; i++)
		alias_small(p, sizes[i]);
	munmap(p, sizes[1] * PAGE);
}

/* Where the pages are, or by way of host memory and back */
static void alias(void)
{
	char *p = anonymous(sizes[1] * PAGE, false);
	char *h = anonymous(huge_sizes[1] * PAGE, true);
	struct hmm_bench args;
	int i;

	migrate(p, sizes[1] * PAGE);
	migrate(h, huge_sizes[1] * PAGE);
	for (i = 0; i < 2; i++) {
		alias_small(p, sizes[i]);
		args = fault(p, sizes[i], peer | BENCH_MAP | BENCH_MAP_RANGE,
			     ROUNDS);
		say("map_alias_4k", sizes[i], args.map);
		say("unmap_alias_4k", sizes[i], args.unmap);
		args = fault(h, huge_sizes[i], peer, ROUNDS);
		found(&args, 0, huge_sizes[i]);
		say("alias_2m", huge_sizes[i], args.fault);
		args = fault(h, huge_sizes[i], peer | BENCH_MAP, ROUNDS);
		say("map_alias_2m", huge_sizes[i], args.map);
		say("alias_2m_runs", huge_sizes[i], args.runs);
		say("alternating_alias", sizes[i], alternating(sizes[i], true));
	}
	map_range("alias", h, peer);
	look_up("alias", h, peer, true);
	invalidation("invalidate_alias_each", BENCH_P2P_OK);
	invalidation("invalidate_alias", BENCH_P2P_OK | BENCH_MAP_RANGE);
	for (i = 0; i < 2; i++) {
		say("home_and_back_4k", sizes[i], home_and_back(p, sizes[i]));
		say("home_and_back_2m", huge_sizes[i],
		    home_and_back(h, huge_sizes[i]));
	}
	munmap(p, sizes[1] * PAGE);
	munmap(h, huge_sizes[1] * PAGE);
}

/* Time on the CPU: that the NIC sleeps while it transfers does not count */
static uint64_t cpu_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static uint64_t nic_read(unsigned int handle, char *p, bool faults)
{
	char byte;
	struct p2ptest_nic_xfer args = {
		.addr = (uintptr_t)p,
		.len = 1,
		.buf = (uintptr_t)&byte,
		.handle = handle,
	};
	uint64_t start = cpu_time();

	if (ioctl(nic_fd, P2PTEST_NIC_XFER, &args))
		err(1, "NIC");
	start = cpu_time() - start;
	if (!!args.faults != faults)
		errx(1, "the NIC faulted %u times", args.faults);
	return start;
}

/* Of all pages, in the round that took the least */
struct nic_least {
	uint64_t cold;
	uint64_t warm;
	uint64_t back;
};

static void nic_round(bool peer, struct nic_least *least)
{
	char *p = anonymous(NIC_PAGES * PAGE, false);
	struct p2ptest_nic_reg reg = {
		.addr = (uintptr_t)p,
		.len = NIC_PAGES * PAGE,
		.flags = P2PTEST_NIC_MR_WRITE |
			 (peer ? 0 : P2PTEST_NIC_MR_NO_P2P),
	};
	struct p2ptest_nic_dereg dereg = {};
	uint64_t cold = 0, warm = 0, back = 0;
	unsigned long i;

	if (ioctl(nic_fd, P2PTEST_NIC_REG, &reg))
		err(1, "registration");
	migrate(p, NIC_PAGES * PAGE);
	for (i = 0; i < NIC_PAGES; i++) {
		uint64_t start;

		if (peer)
			SPAN(4);
		cold += nic_read(reg.handle, p + i * PAGE, true);
		if (peer)
			SPAN(5);
		warm += nic_read(reg.handle, p + i * PAGE, false);
		SPAN(0);
		start = cpu_time();
		if (!peer)
			migrate(p + i * PAGE, PAGE);
		back += cpu_time() - start;
	}
	keep_least(&least->cold, cold);
	keep_least(&least->warm, warm);
	keep_least(&least->back, back);
	dereg.handle = reg.handle;
	if (ioctl(nic_fd, P2PTEST_NIC_DEREG, &dereg))
		err(1, "deregistration");
	munmap(p, NIC_PAGES * PAGE);
}

/*
 * The first byte that the NIC reads of a page, and the same byte once more: the
 * difference is the page fault of the NIC.
 */
static void nic(bool peer)
{
	struct nic_least least = { UINT64_MAX, UINT64_MAX, UINT64_MAX };
	int round;

	for (round = 0; round < ROUNDS; round++)
		nic_round(peer, &least);
	say(peer ? "nic_cold" : "nic_cold_home", NIC_PAGES, least.cold);
	say(peer ? "nic_warm" : "nic_warm_home", NIC_PAGES, least.warm);
	if (!peer)
		say("nic_back", NIC_PAGES, least.back);
}

/* What memory of a size costs a card without page faults */
struct registration_least {
	uint64_t first;
	uint64_t cached;
	uint64_t revoked;
	uint64_t plain;
};

static uint64_t drop_page(char *p)
{
	uint64_t start = ticks();

	if (madvise(p, PAGE, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
	return ticks() - start;
}

static uint64_t register_it(struct p2p_cache *cache, char *p, size_t len)
{
	uint64_t start = ticks();
	__u32 handle;
	int ret = p2p_cache_get(cache, p, len, P2PTEST_NIC_MR_WRITE, &handle);

	start = ticks() - start;
	if (ret)
		errx(1, "registration of %zu bytes: %d", len, ret);
	return start;
}

/*
 * The first registration of memory in the GPU, and the second one, which finds the
 * first in the cache; a page that goes away, with and without them; and what HMM
 * alone takes to find all pages and to map them.
 */
static void registration(const char *size, unsigned long pages)
{
	struct registration_least least = {
		UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX
	};
	const struct p2p_nic nic = { .fd = nic_fd };
	const size_t len = pages * PAGE;
	struct hmm_bench args;
	char name[64];
	int round;

	for (round = 0; round < ROUNDS; round++) {
		struct p2p_cache *cache = p2p_cache_new(&nic, len);
		char *p = anonymous(len, false);

		if (!cache)
			errx(1, "no memory");
		migrate(p, len);
		args = fault(p, pages, BENCH_FAULT | BENCH_P2P_OK | BENCH_MAP |
			     BENCH_MAP_RANGE, ROUNDS);
		found(&args, 0, pages);
		keep_least(&least.plain, drop_page(p));
		p[0] = 1;
		migrate(p, PAGE);
		if (!strcmp(size, "1m"))
			SPAN(6);
		keep_least(&least.first, register_it(cache, p, len));
		SPAN(0);
		keep_least(&least.cached, register_it(cache, p, len));
		keep_least(&least.revoked, drop_page(p));
		p2p_cache_free(cache);
		munmap(p, len);
	}
	snprintf(name, sizeof(name), "register_first_%s", size);
	say(name, 1, least.first);
	snprintf(name, sizeof(name), "register_cached_%s", size);
	say(name, 1, least.cached);
	snprintf(name, sizeof(name), "revoke_page_%s", size);
	say(name, 1, least.revoked - least.plain);
	snprintf(name, sizeof(name), "find_and_map_%s", size);
	say(name, 1, args.fault + args.map);
}

static void transfer_once(struct p2p_cache *cache, char *src, char *dst,
			  size_t len)
{
	struct p2ptest_nic_copy copy = { .len = 1 };
	const struct p2p_nic nic = { .fd = nic_fd };

	if (p2p_cache_get(cache, src, len, 0, &copy.src) ||
	    p2p_cache_get(cache, dst, len, P2PTEST_NIC_MR_WRITE, &copy.dst) ||
	    p2p_nic_copy(&nic, &copy))
		errx(1, "transfer of %zu bytes", len);
}

/*
 * A card copies from a buffer in the GPU to one in host memory. Both are registered
 * for it, and given back behind it, or they stay in a cache. The test NIC takes
 * commands for each page: so that these are not all that is counted, it copies
 * one byte, by as many commands as a card takes for a buffer.
 */
static void transfer(const char *size, unsigned long pages)
{
	const struct p2p_nic nic = { .fd = nic_fd };
	uint64_t cached = UINT64_MAX, uncached = UINT64_MAX, start;
	const size_t len = pages * PAGE;
	struct p2p_cache *cache = p2p_cache_new(&nic, 2 * len), *none;
	char *src = anonymous(len, false), *dst = anonymous(len, false);
	char name[64];
	int round;

	if (!cache)
		errx(1, "no memory");
	migrate(src, len);
	/*
	 * An interrupt counts, too. A transfer takes 100 ms, a multiple of the
	 * tick: without a pause each round has its interrupts at the same place.
	 */
	for (round = 0; round < 5 * ROUNDS; round++) {
		usleep(137 * round);
		none = p2p_cache_new(&nic, 2 * len);
		if (!none)
			errx(1, "no memory");
		start = cpu_time();
		transfer_once(none, src, dst, len);
		p2p_cache_free(none);
		keep_least(&uncached, cpu_time() - start);
		/* The first time they are not in the cache yet */
		start = cpu_time();
		transfer_once(cache, src, dst, len);
		keep_least(&cached, cpu_time() - start);
	}
	p2p_cache_free(cache);
	munmap(src, len);
	munmap(dst, len);
	snprintf(name, sizeof(name), "transfer_cached_%s", size);
	say(name, 1, cached);
	snprintf(name, sizeof(name), "transfer_uncached_%s", size);
	say(name, 1, uncached);
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";

	if (strcmp(what, "ram") && strcmp(what, "p2p") &&
	    strcmp(what, "callback"))
		errx(2, "usage: bench ram|p2p|callback");
	bench_fd = open_it("/dev/hmm_bench");
	/* The base can not map a range */
	ram(!strcmp(what, "p2p"));
	if (!strcmp(what, "callback")) {
		callback();
		return 0;
	}
	range();
	if (!strcmp(what, "ram")) {
		dmirror_fd = open_it("/dev/hmm_dmirror0");
		alternating_refused();
	} else {
		gpu_fd = open_it("/dev/p2ptest_gpu0");
		nic_fd = open_it("/dev/p2ptest_nic0");
		alias();
		alternating_refused();
		nic(true);
		nic(false);
		registration("64k", 16);
		registration("1m", 256);
		registration("32m", 8192);
		registration("64m", 16384);
		transfer("64k", 16);
		transfer("1m", 256);
	}
	return 0;
}
