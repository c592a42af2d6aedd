// SPDX-License-Identifier: GPL-2.0
/*
 * Counts instructions; runs in the guest, as root, on the base and on the
 * series. Each line of output is a JSON object: a case, a number of pages, and
 * what the case took. The host makes quotients of it.
 *
 * usage: bench ram | p2p
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <linux/p2ptest.h>

#include "hmm_bench.h"
#include "p2p_cache.h"

#define PAGE		4096UL
#define HUGE		(2UL << 20)
#define HUGE_PAGES	(HUGE / PAGE)
#define ROUNDS		5
#define NIC_PAGES	256UL

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

static int bench_fd, gpu_fd, nic_fd;

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

static void migrate(char *p, size_t len)
{
	struct p2ptest_gpu_migrate args = {
		.addr = (uintptr_t)p,
		.len = len,
		.dir = P2PTEST_GPU_TO_VRAM,
	};

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
	if (ranges)
		map_range("ram", h, BENCH_FAULT);
	munmap(p, sizes[1] * PAGE);
	munmap(h, huge_sizes[1] * PAGE);
}

/* 16 GiB of addresses that share 256 MiB of memory */
static void range(void)
{
	const size_t file_len = 256UL << 20, len = 16UL << 30;
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

/* Where the pages are, or by way of host memory and back */
static void alias(void)
{
	char *p = anonymous(sizes[1] * PAGE, false);
	char *h = anonymous(huge_sizes[1] * PAGE, true);
	const unsigned int peer = BENCH_FAULT | BENCH_P2P_OK;
	struct hmm_bench args;
	int i;

	migrate(p, sizes[1] * PAGE);
	migrate(h, huge_sizes[1] * PAGE);
	for (i = 0; i < 2; i++) {
		args = fault(p, sizes[i], peer, ROUNDS);
		found(&args, 0, sizes[i]);
		say("alias_4k", sizes[i], args.fault);
		args = fault(p, sizes[i], peer | BENCH_MAP, ROUNDS);
		say("map_alias", sizes[i], args.map);
		say("unmap_alias", sizes[i], args.unmap);
		say("alias_4k_runs", sizes[i], args.runs);
		args = fault(h, huge_sizes[i], peer, ROUNDS);
		found(&args, 0, huge_sizes[i]);
		say("alias_2m", huge_sizes[i], args.fault);
		args = fault(h, huge_sizes[i], peer | BENCH_MAP, ROUNDS);
		say("map_alias_2m", huge_sizes[i], args.map);
		say("alias_2m_runs", huge_sizes[i], args.runs);
		say("alternating_alias", sizes[i], alternating(sizes[i], true));
	}
	map_range("alias", h, peer);
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

		cold += nic_read(reg.handle, p + i * PAGE, true);
		warm += nic_read(reg.handle, p + i * PAGE, false);
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
		keep_least(&least.first, register_it(cache, p, len));
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

static int open_it(const char *path)
{
	int fd = open(path, O_RDWR);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

int main(int argc, char **argv)
{
	if (argc != 2 || (strcmp(argv[1], "ram") && strcmp(argv[1], "p2p")))
		errx(2, "usage: bench ram|p2p");
	bench_fd = open_it("/dev/hmm_bench");
	/* The base can not map a range */
	ram(!strcmp(argv[1], "p2p"));
	range();
	if (!strcmp(argv[1], "p2p")) {
		gpu_fd = open_it("/dev/p2ptest_gpu0");
		nic_fd = open_it("/dev/p2ptest_nic0");
		alias();
		nic(true);
		nic(false);
		registration("64k", 16);
		registration("1m", 256);
		registration("32m", 8192);
	}
	return 0;
}
