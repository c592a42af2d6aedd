// SPDX-License-Identifier: GPL-2.0
/*
 * p2p_demo.c - one scenario of a NIC that reads and writes memory which lies in
 * a GPU, step by step, with somebody outside to confirm it
 *
 * A process fills a buffer, moves it to video memory, and lets the NIC write a
 * new pattern to it and read it back by DMA. Then the GPU reads it, and the CPU
 * does, which brings it home. At each step the program compares what it sees,
 * and if it is given a judge, the judge compares what is in VRAM meanwhile. The
 * result is a JSON object. It is not a test of everything: hmm_p2p_test and its
 * companions are. The program's other files have the NIC and the GPU: see
 * p2p_demo.h.
 *
 * Scenarios:
 *	resident	all pages are in the GPU
 *	mixed		of eight pages four are in the GPU, four in RAM
 *	thp		as resident, with memory of 2 MiB folios
 *	two-gpus	one half is in GPU 0, the other in GPU 1
 *	gpu-gpu		one half is the source: its first part is in GPU 0, the
 *			second in GPU 1. The other half is the destination, whose
 *			first part is in GPU 1. The NIC does not write a new
 *			pattern: it copies the source to the destination, and
 *			thus from each GPU to the other. For NICs that can.
 *
 * Judge: whoever runs the guest and can see the file that is the GPU's VRAM.
 * The program writes a line of JSON to a character device (a virtio port) and
 * reads a line, "ok" or "fail <why>". There is no time limit on the answer,
 * because the time of an emulated guest says nothing about the host's.
 *
 *	{"op":"snapshot","gpu":G}
 *		remember the VRAM of GPU G
 *	{"op":"contains","gpu":G,"pages":[{"off":O,"seed":S,"index":I},...]}
 *		VRAM page at byte O holds page I of seed S, for each one listed
 *	{"op":"check","gpu":G,"pages":[...],"freed":[O,...]}
 *		as "contains", and every page in "freed" is all poison (0x5a),
 *		and every page that is in neither is as in the snapshot
 *
 * If the GPU's driver does not tell where in VRAM a page is, the program asks
 * one other question instead, about pages that are in VRAM:
 *
 *	{"op":"somewhere","gpu":G,"pages":[{"seed":S,"index":I},...]}
 *		VRAM of GPU G holds page I of seed S somewhere, for each one
 *		listed
 *
 * Nobody looks at pages that were freed then, and VRAM may keep what earlier
 * runs left in it. So each run has seeds of its own: the NIC's pattern is in
 * VRAM only if the NIC's bytes got there, because the CPU writes that pattern
 * to RAM that never moves.
 *
 * The pattern and its pages are described in p2ptest.h.
 */
#define _GNU_SOURCE
#include "p2p_demo.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_OK		0
#define EXIT_FAILED	1
#define EXIT_USAGE	2
#define EXIT_SKIPPED	4

/* Small enough to be exact in any JSON reader */
#define SEED_CPU	0x5eed0001ULL
#define SEED_NIC	0x5eed0002ULL
/* What a run of its own adds to them: far apart, and less than 2^53 */
#define SEED_RUNS	1000000ULL
#define SEED_STEP	1000000000ULL

enum scenario { RESIDENT, MIXED, THP, TWO_GPUS, GPU_GPU };

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

static const char *const scenario_names[] = {
	[RESIDENT]	= "resident",
	[MIXED]		= "mixed",
	[THP]		= "thp",
	[TWO_GPUS]	= "two-gpus",
	[GPU_GPU]	= "gpu-gpu",
};

struct demo {
	/* Asked for */
	enum scenario scenario;
	const char *out;
	const char *expect_kind;	/* NULL: whatever it is */
	long expect_peer;		/* -1: whatever it is */
	long expect_home;

	/* Devices and memory */
	FILE *judge;			/* to the judge; NULL: none */
	int judge_fd;			/* from the judge */
	int nr_gpus;
	unsigned char *buf;
	unsigned char *copy;
	__u64 seed_cpu;
	__u64 seed_nic;			/* of the buffer after the DMA */
	size_t period;			/* pages after which the pattern begins again */
	size_t pages;
	size_t len;
	char nic[P2P_PCI_NAME];
	struct p2p_trace trace;
	/* By page: the GPU that holds it, or -1, and where in its VRAM */
	int *home_gpu;
	__u64 *offset;
	bool *peer;

	/* Found out */
	const char *map_type;
	bool translated;		/* what the NIC does, by an IOMMU */
	unsigned long peer_pages;
	unsigned long home_pages;	/* were in VRAM, had to leave it */
	unsigned long ram_pages;	/* were in RAM anyway */
	unsigned long other_pages;	/* UNMAPPED after the DMA: a defect */
	__u64 migrations;
	__u64 bytes;
	unsigned long reasons[P2PTEST_REASON_MAX];
	bool have_stats;
	struct p2p_stats stats;
	__u32 faults;
	__u32 retries;
	bool intact;

	/* First thing that went wrong */
	int exit_code;
	char error[1024];
};

/* The first reason is the one that explains the others */
#define stop(d, code, ...) do {						\
	struct demo *__d = (d);						\
									\
	if (!__d->exit_code) {						\
		__d->exit_code = (code);				\
		snprintf(__d->error, sizeof(__d->error), __VA_ARGS__);	\
	}								\
} while (0)

#define fail(d, ...)	stop(d, EXIT_FAILED, __VA_ARGS__)

/* Judge */

/*
 * Such a port can be opened once, and not be sought in: it is written to
 * through a stream, and read from without one.
 */
static void judge_open(struct demo *d, const char *path)
{
	d->judge_fd = open(path, O_RDWR | O_CLOEXEC);
	if (d->judge_fd >= 0)
		d->judge = fdopen(dup(d->judge_fd), "w");
	if (!d->judge)
		fail(d, "judge: %s: %s", path, strerror(errno));
}

static void judge_answer(struct demo *d, const char *op, int gpu)
{
	char line[512], c = 0;
	size_t len = 0;
	ssize_t n;

	fputc('\n', d->judge);
	if (fflush(d->judge)) {
		fail(d, "judge: cannot ask \"%s\": %s", op, strerror(errno));
		return;
	}
	while (c != '\n') {
		n = read(d->judge_fd, &c, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			fail(d, "judge: no answer to \"%s\"", op);
			return;
		}
		if (c != '\n' && len < sizeof(line) - 1)
			line[len++] = c;
	}
	line[len] = '\0';
	if (strcmp(line, "ok")) {
		d->intact = false;
		fail(d, "judge: \"%s\" of GPU %d: %s", op, gpu, line);
	}
}

static void judge_snapshot(struct demo *d, int gpu)
{
	if (!demo_gpu_offsets || !d->judge || d->exit_code)
		return;
	fprintf(d->judge, "{\"op\":\"snapshot\",\"gpu\":%d}", gpu);
	judge_answer(d, "snapshot", gpu);
}

static bool is_asked(const struct demo *d, size_t page, int gpu,
		     const bool *peer)
{
	return d->home_gpu[page] == gpu && (!peer || peer[page]);
}

/* The question about pages whose place is not known. To list none asks nothing */
static void judge_somewhere(struct demo *d, int gpu, __u64 seed,
			    const bool *peer)
{
	const char *sep = "";
	size_t i = 0;

	while (i < d->pages && !is_asked(d, i, gpu, peer))
		i++;
	if (i == d->pages)
		return;
	fprintf(d->judge, "{\"op\":\"somewhere\",\"gpu\":%d,\"pages\":[", gpu);
	for (; i < d->pages; i++) {
		if (!is_asked(d, i, gpu, peer))
			continue;
		fprintf(d->judge, "%s{\"seed\":%llu,\"index\":%zu}", sep, seed,
			i % d->period);
		sep = ",";
	}
	fputs("]}", d->judge);
	judge_answer(d, "somewhere", gpu);
}

/*
 * Ask about the pages of @gpu: those that @peer says are still in VRAM (NULL
 * for all) hold @seed; for "check", those that are not any more were freed.
 */
static void judge_pages(struct demo *d, const char *op, int gpu, __u64 seed,
			const bool *peer)
{
	const char *sep = "";
	size_t i;

	if (!d->judge || d->exit_code)
		return;
	if (!demo_gpu_offsets) {
		judge_somewhere(d, gpu, seed, peer);
		return;
	}
	fprintf(d->judge, "{\"op\":\"%s\",\"gpu\":%d,\"pages\":[", op, gpu);
	for (i = 0; i < d->pages; i++) {
		if (!is_asked(d, i, gpu, peer))
			continue;
		fprintf(d->judge,
			"%s{\"off\":%llu,\"seed\":%llu,\"index\":%zu}",
			sep, d->offset[i], seed, i % d->period);
		sep = ",";
	}
	fputs("]", d->judge);
	if (!strcmp(op, "check")) {
		fputs(",\"freed\":[", d->judge);
		sep = "";
		for (i = 0; i < d->pages; i++) {
			if (d->home_gpu[i] != gpu || !peer || peer[i])
				continue;
			fprintf(d->judge, "%s%llu", sep, d->offset[i]);
			sep = ",";
		}
		fputs("]", d->judge);
	}
	fputs("}", d->judge);
	judge_answer(d, op, gpu);
}

/* Steps */

static void compare(struct demo *d, const char *who, const unsigned char *buf,
		    __u64 seed, size_t pos, size_t len)
{
	const size_t period = d->period * P2P_PAGE, end = pos + len;
	size_t n, same;

	for (; pos < end; pos += n, buf += n) {
		n = period - pos % period;
		if (n > end - pos)
			n = end - pos;
		same = p2p_compare(buf, seed, pos % period, n);
		if (same == n)
			continue;
		d->intact = false;
		fail(d, "%s: byte %zu of page %zu is wrong", who,
		     (pos + same) % P2P_PAGE, (pos + same) / P2P_PAGE);
		return;
	}
}

static void open_devices(struct demo *d)
{
	int want = d->scenario == TWO_GPUS || d->scenario == GPU_GPU ? 2 : 1;
	const char *what;
	int i, ret;

	for (i = 0; i < want; i++) {
		ret = demo_gpu_open(i, &what);
		if (ret) {
			stop(d, ret == -ENOENT ? EXIT_SKIPPED : EXIT_FAILED,
			     "%s: %s", what, strerror(-ret));
			return;
		}
		d->nr_gpus++;
	}
	ret = demo_nic_open(d->nic, &what);
	if (ret)
		stop(d, ret == -ENOENT ? EXIT_SKIPPED : EXIT_FAILED, "%s: %s",
		     what, strerror(-ret));
	else
		d->translated = p2p_pci_translated(d->nic);
	if (d->scenario == GPU_GPU && (!demo_nic_copy || !demo_gpu_phys))
		stop(d, EXIT_SKIPPED, "not for this NIC, or not for this GPU");
}

static void alloc_memory(struct demo *d)
{
	__u64 run = demo_gpu_offsets ? 0 : p2p_now_ms() % SEED_RUNS;
	size_t i;

	d->seed_cpu = SEED_CPU + run * SEED_STEP;
	d->seed_nic = SEED_NIC + run * SEED_STEP;
	d->period = d->pages;
	d->buf = d->scenario == THP ? p2p_alloc_huge(d->len) :
				      p2p_alloc(d->len);
	d->copy = malloc(d->len);
	d->home_gpu = malloc(d->pages * sizeof(*d->home_gpu));
	d->offset = calloc(d->pages, sizeof(*d->offset));
	d->peer = calloc(d->pages, sizeof(*d->peer));
	if (!d->buf || !d->copy || !d->home_gpu || !d->offset || !d->peer) {
		fail(d, "no memory for %zu pages", d->pages);
		return;
	}
	for (i = 0; i < d->pages; i++)
		d->home_gpu[i] = -1;
	p2p_fill(d->buf, d->seed_cpu, 0, d->len);
	if (d->scenario == THP && p2p_huge_bytes(d->buf) != (long)d->len)
		stop(d, EXIT_SKIPPED, "the kernel gives no huge pages");
}

/* Which GPU the scenario wants page @i in, or -1 */
static int wanted_gpu(const struct demo *d, size_t i)
{
	switch (d->scenario) {
	case MIXED:
		return i / 4 % 2 ? -1 : 0;
	case TWO_GPUS:
		return i < d->pages / 2 ? 0 : 1;
	case GPU_GPU:
		return i < d->pages / 4 || i >= d->pages / 4 * 3 ? 0 : 1;
	default:
		return 0;
	}
}

/* Find which pages are in VRAM; @home_gpu and @offset receive the answer */
static void look_up(struct demo *d, int *home_gpu, __u64 *offset)
{
	__u64 *found = malloc(d->pages * sizeof(*found));
	size_t i;
	int g, ret;

	if (!found) {
		fail(d, "no memory for %zu locations", d->pages);
		return;
	}
	for (i = 0; i < d->pages; i++)
		home_gpu[i] = -1;
	for (g = 0; g < d->nr_gpus; g++) {
		ret = demo_gpu_lookup(g, d->buf, d->len, found);
		if (ret) {
			fail(d, "lookup of GPU %d: %s", g, strerror(-ret));
			break;
		}
		for (i = 0; i < d->pages; i++) {
			if (found[i] == DEMO_GPU_NOT_HERE)
				continue;
			home_gpu[i] = g;
			offset[i] = found[i];
		}
	}
	free(found);
}

static void migrate(struct demo *d)
{
	size_t i, n;
	long moved;
	int gpu;

	for (i = 0; i < d->pages; i += n) {
		gpu = wanted_gpu(d, i);
		for (n = 1; i + n < d->pages && wanted_gpu(d, i + n) == gpu;)
			n++;
		if (gpu < 0)
			continue;
		moved = demo_gpu_to_vram(gpu, d->buf + i * P2P_PAGE,
					 n * P2P_PAGE);
		if (moved != (long)n) {
			fail(d, "migration to GPU %d: %ld of %zu pages moved",
			     gpu, moved, n);
			return;
		}
	}

	look_up(d, d->home_gpu, d->offset);
	for (i = 0; !d->exit_code && i < d->pages; i++) {
		if (d->home_gpu[i] != wanted_gpu(d, i))
			fail(d, "page %zu is in GPU %d after migration to %d",
			     i, d->home_gpu[i], wanted_gpu(d, i));
	}
	if (d->scenario == THP && p2p_huge_bytes(d->buf) != (long)d->len)
		fail(d, "huge pages were split on the way to VRAM");
}

static __u64 count_migrations(struct demo *d)
{
	__u64 moved, n = 0;
	int g, ret;

	for (g = 0; g < d->nr_gpus; g++) {
		ret = demo_gpu_migrations(g, &moved);
		if (ret)
			fail(d, "info of GPU %d: %s", g, strerror(-ret));
		else
			n += moved;
	}
	return n;
}

/* The NIC's view after a DMA: what was reached where, and why */
static void query(struct demo *d)
{
	struct p2ptest_nic_page *pages = calloc(d->pages, sizeof(*pages));
	bool bus = false, bridge = false;
	size_t i;
	int ret;

	ret = pages ? demo_nic_query(pages) : -ENOMEM;
	if (ret) {
		fail(d, "no view of the pages: %s", strerror(-ret));
		free(pages);
		return;
	}
	for (i = 0; i < d->pages; i++) {
		if (pages[i].reason >= P2PTEST_REASON_MAX) {
			fail(d, "page %zu has unknown reason %u", i,
			     pages[i].reason);
			break;
		}
		d->reasons[pages[i].reason]++;
		d->peer[i] = p2p_kind_is_peer(pages[i].kind);
		bus |= pages[i].kind == P2PTEST_PAGE_BUS_ADDR;
		bridge |= pages[i].kind == P2PTEST_PAGE_HOST_BRIDGE;
		if (d->peer[i])
			d->peer_pages++;
		else if (pages[i].kind != P2PTEST_PAGE_HOST)
			d->other_pages++;
		else if (d->home_gpu[i] >= 0)
			d->home_pages++;
		else
			d->ram_pages++;
		if (d->peer[i] && d->home_gpu[i] < 0)
			fail(d, "page %zu was in RAM, but the NIC has a peer address",
			     i);
	}
	d->map_type = bus && bridge ? "bus_addr+host_bridge" :
		      bus ? "bus_addr" :
		      bridge ? "host_bridge" : "host";
	free(pages);
	if (d->other_pages)
		fail(d, "%lu pages are not mapped after the DMA",
		     d->other_pages);
}

/* Pages with a peer address did not move, the others are in RAM now */
static void check_residence(struct demo *d)
{
	int *gpu = malloc(d->pages * sizeof(*gpu));
	__u64 *offset = calloc(d->pages, sizeof(*offset));
	size_t i;

	if (!gpu || !offset) {
		fail(d, "no memory for %zu locations", d->pages);
		goto out;
	}
	look_up(d, gpu, offset);
	for (i = 0; !d->exit_code && i < d->pages; i++) {
		if (!d->peer[i] && gpu[i] >= 0)
			fail(d, "page %zu is in GPU %d, but the NIC wrote to RAM",
			     i, gpu[i]);
		if (d->peer[i] &&
		    (gpu[i] != d->home_gpu[i] || offset[i] != d->offset[i]))
			fail(d, "page %zu has moved under the NIC", i);
	}
out:
	free(gpu);
	free(offset);
}

/*
 * The address of a page that did not move is in the BAR of the GPU that has it, at
 * the page's place
 */
static void check_addresses(struct demo *d)
{
	__u64 phys, expected;
	size_t i;
	int ret;

	for (i = 0; !d->exit_code && i < d->pages; i++) {
		if (!d->peer[i])
			continue;
		ret = demo_gpu_phys(d->home_gpu[i], d->offset[i], &expected);
		ret = ret ?: p2p_trace_phys(&d->trace, d->nic,
					    d->buf + i * P2P_PAGE, &phys);
		if (ret)
			fail(d, "no address of page %zu: %s", i, strerror(-ret));
		else if (phys != expected)
			fail(d, "page %zu is at 0x%llx, but the NIC has 0x%llx", i,
			     expected, phys);
	}
}

static void check_counters(struct demo *d)
{
	int i;

	if (!d->have_stats)
		return;
	if (p2p_stats_since(&d->stats)) {
		fail(d, "the counters have gone");
		return;
	}
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++) {
		if (d->stats.pages[i] < d->reasons[i])
			fail(d, "%lu pages are %s, but the counter counted %llu",
			     d->reasons[i], p2p_reason_names[i],
			     d->stats.pages[i]);
	}
}

/* The NIC changes the buffer: by a new pattern, or by a copy of one half */
static int change(struct demo *d, struct p2ptest_nic_xfer *xfer)
{
	int ret;

	if (d->scenario != GPU_GPU) {
		p2p_fill(d->copy, d->seed_nic, 0, d->len);
		return demo_nic_write(d->copy, xfer);
	}
	d->seed_nic = d->seed_cpu;
	d->period = d->pages / 2;
	ret = demo_nic_copy(0, d->len / 2, d->len / 2, xfer);
	/* It read that much of the buffer, and wrote as much */
	xfer->done *= 2;
	return ret;
}

static void dma(struct demo *d)
{
	struct p2ptest_nic_xfer xfer;
	__u64 before;
	int g, ret;

	for (g = 0; g < d->nr_gpus; g++) {
		judge_pages(d, "contains", g, d->seed_cpu, NULL);
		judge_snapshot(d, g);
	}

	/* To register may be to reach pages already, which counts */
	d->have_stats = !p2p_stats_read(&d->stats);
	before = count_migrations(d);
	if (d->scenario == GPU_GPU) {
		ret = p2p_trace_start(&d->trace);
		if (ret) {
			fail(d, "cannot trace: %s", strerror(-ret));
			return;
		}
	}
	ret = demo_nic_reg(d->buf, d->len);
	if (ret) {
		fail(d, "cannot register the buffer: %s", strerror(-ret));
		return;
	}

	ret = change(d, &xfer);
	d->bytes += xfer.done;
	d->faults += xfer.faults;
	d->retries += xfer.retries;
	if (ret) {
		fail(d, "NIC write: %s after %llu bytes", strerror(-ret),
		     (unsigned long long)xfer.done);
		return;
	}
	query(d);
	if (d->exit_code)
		return;
	check_residence(d);
	if (d->scenario == GPU_GPU)
		check_addresses(d);
	for (g = 0; g < d->nr_gpus; g++)
		judge_pages(d, "check", g, d->seed_nic, d->peer);

	memset(d->copy, 0, d->len);
	ret = demo_nic_read(d->copy, &xfer);
	d->bytes += xfer.done;
	d->faults += xfer.faults;
	d->retries += xfer.retries;
	if (ret) {
		fail(d, "NIC read: %s after %llu bytes", strerror(-ret),
		     (unsigned long long)xfer.done);
		return;
	}
	compare(d, "NIC read", d->copy, d->seed_nic, 0, d->len);

	d->migrations = count_migrations(d) - before;
	check_residence(d);
	check_counters(d);
	if (d->migrations != d->home_pages)
		fail(d, "%llu migrations, but %lu pages came home",
		     d->migrations, d->home_pages);
}

/* The GPU still sees its pages in place; then the CPU takes all of them home */
static void take_home(struct demo *d)
{
	bool *none = calloc(d->pages, sizeof(*none));
	size_t i, n;
	long ret;
	int g;

	for (i = 0; !d->exit_code && i < d->pages; i += n) {
		g = d->home_gpu[i];
		for (n = 1; i + n < d->pages && d->home_gpu[i + n] == g &&
		     d->peer[i + n] == d->peer[i];)
			n++;
		if (g < 0 || !d->peer[i])
			continue;
		memset(d->copy, 0, n * P2P_PAGE);
		ret = demo_gpu_read(g, d->buf + i * P2P_PAGE, d->copy,
				    n * P2P_PAGE);
		if (ret == -EOPNOTSUPP)
			continue;
		if (ret != (long)n)
			fail(d, "GPU %d read %ld of %zu pages in VRAM", g, ret,
			     n);
		compare(d, "GPU read", d->copy, d->seed_nic, i * P2P_PAGE,
			n * P2P_PAGE);
	}

	if (!d->exit_code)
		compare(d, "CPU read", d->buf, d->seed_nic, 0, d->len);
	/* Nothing of the process is left in VRAM */
	for (g = 0; none && g < d->nr_gpus; g++)
		judge_pages(d, "check", g, d->seed_nic, none);
	if (!none)
		fail(d, "no memory for %zu pages", d->pages);
	free(none);
}

static void check_expectation(struct demo *d)
{
	if (d->exit_code)
		return;
	if (d->expect_kind && strcmp(d->expect_kind, d->map_type))
		fail(d, "expected map type %s, seen %s", d->expect_kind,
		     d->map_type);
	if (d->expect_peer >= 0 && (long)d->peer_pages != d->expect_peer)
		fail(d, "expected %ld pages with a peer address, seen %lu",
		     d->expect_peer, d->peer_pages);
	if (d->expect_home >= 0 && (long)d->home_pages != d->expect_home)
		fail(d, "expected %ld pages to come home, seen %lu",
		     d->expect_home, d->home_pages);
}

/* Result */

static void print_string(FILE *f, const char *name, const char *text)
{
	fprintf(f, ",\"%s\":\"", name);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fprintf(f, "\\%c", *text);
		else if ((unsigned char)*text < ' ')
			fprintf(f, "\\u%04x", *text);
		else
			fputc(*text, f);
	}
	fputc('"', f);
}

static void print_expect(FILE *f, const char *name, long value)
{
	if (value >= 0)
		fprintf(f, ",\"%s\":%ld", name, value);
	else
		fprintf(f, ",\"%s\":null", name);
}

static int print_result(const struct demo *d)
{
	FILE *f = d->out ? fopen(d->out, "we") : stdout;
	const char *sep = "";
	int i;

	if (!f) {
		fprintf(stderr, "p2p_demo: %s: %s\n", d->out, strerror(errno));
		return -1;
	}
	fprintf(f, "{\"scenario\":\"%s\",\"map_type\":\"%s\",\"pages\":%zu",
		scenario_names[d->scenario], d->map_type, d->pages);
	fprintf(f, ",\"translated\":%s", d->translated ? "true" : "false");
	fprintf(f, ",\"peer_pages\":%lu,\"home_pages\":%lu,\"ram_pages\":%lu",
		d->peer_pages, d->home_pages, d->ram_pages);
	fprintf(f, ",\"migrations\":%llu,\"bytes\":%llu",
		d->migrations, d->bytes);
	fprintf(f, ",\"faults\":%u,\"retries\":%u", d->faults, d->retries);
	fprintf(f, ",\"intact\":%s,\"judged\":%s", d->intact ? "true" : "false",
		d->judge ? "true" : "false");
	fputs(",\"reasons\":{", f);
	for (i = 0; i < P2PTEST_REASON_MAX; i++) {
		if (!d->reasons[i])
			continue;
		fprintf(f, "%s\"%s\":%lu", sep, p2p_reason_names[i],
			d->reasons[i]);
		sep = ",";
	}
	fputs("},\"expected\":{\"map_type\":", f);
	if (d->expect_kind)
		fprintf(f, "\"%s\"", d->expect_kind);
	else
		fputs("null", f);
	print_expect(f, "peer_pages", d->expect_peer);
	print_expect(f, "home_pages", d->expect_home);
	fprintf(f, "},\"exit\":%d", d->exit_code);
	print_string(f, "error", d->error);
	fputs("}\n", f);
	i = ferror(f);
	if (f != stdout)
		i |= fclose(f);
	if (i)
		fprintf(stderr, "p2p_demo: the result could not be written\n");
	return i ? -1 : 0;
}

static int usage(const char *what)
{
	fprintf(stderr,
		"p2p_demo: %s\n"
		"p2p_demo --scenario resident|mixed|thp|two-gpus|gpu-gpu\n"
		"	[--pages N] [--judge PATH] [--out FILE]\n"
		"	[--expect-kind bus_addr|host_bridge|host]\n"
		"	[--expect-peer N] [--expect-home N]\n", what);
	return EXIT_USAGE;
}

static int parse_number(const char *text, long min, long *value)
{
	char *end;

	errno = 0;
	*value = strtol(text, &end, 0);
	return errno || end == text || *end || *value < min ? -1 : 0;
}

static int parse_args(struct demo *d, int argc, char **argv, const char **judge)
{
	static const struct option options[] = {
		{ "scenario", required_argument, NULL, 's' },
		{ "pages", required_argument, NULL, 'n' },
		{ "judge", required_argument, NULL, 'j' },
		{ "out", required_argument, NULL, 'o' },
		{ "expect-kind", required_argument, NULL, 'k' },
		{ "expect-peer", required_argument, NULL, 'p' },
		{ "expect-home", required_argument, NULL, 'h' },
		{ }
	};
	bool have_scenario = false;
	long pages = 0;
	size_t i;
	int opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			for (i = 0; i < ARRAY_SIZE(scenario_names); i++) {
				if (strcmp(optarg, scenario_names[i]))
					continue;
				d->scenario = i;
				have_scenario = true;
			}
			if (!have_scenario)
				return usage("unknown scenario");
			break;
		case 'n':
			if (parse_number(optarg, 1, &pages))
				return usage("--pages must be a number above 0");
			break;
		case 'j':
			*judge = optarg;
			break;
		case 'o':
			d->out = optarg;
			break;
		case 'k':
			if (strcmp(optarg, "bus_addr") &&
			    strcmp(optarg, "host_bridge") &&
			    strcmp(optarg, "host"))
				return usage("unknown kind");
			d->expect_kind = optarg;
			break;
		case 'p':
			if (parse_number(optarg, 0, &d->expect_peer))
				return usage("--expect-peer must be a number");
			break;
		case 'h':
			if (parse_number(optarg, 0, &d->expect_home))
				return usage("--expect-home must be a number");
			break;
		default:
			return usage("bad argument");
		}
	}
	if (optind != argc || !have_scenario)
		return usage("--scenario is missing, or there is too much");
	d->pages = pages ? pages : d->scenario == THP ? 512 : 64;
	if (d->scenario == THP && d->pages % 512)
		return usage("thp needs a multiple of 512 pages");
	if (d->scenario == GPU_GPU && d->pages % 4)
		return usage("gpu-gpu needs a multiple of 4 pages");
	d->len = d->pages * P2P_PAGE;
	return 0;
}

int main(int argc, char **argv)
{
	struct demo d = {
		.expect_peer = -1,
		.expect_home = -1,
		.map_type = "unknown",
		.intact = true,
	};
	const char *judge = NULL;
	int ret = parse_args(&d, argc, argv, &judge);

	if (ret)
		return ret;
	if (judge)
		judge_open(&d, judge);
	if (!d.exit_code)
		open_devices(&d);
	if (!d.exit_code)
		alloc_memory(&d);
	if (!d.exit_code)
		migrate(&d);
	if (!d.exit_code)
		dma(&d);
	if (!d.exit_code)
		take_home(&d);
	if (d.trace.dir[0])
		p2p_trace_stop(&d.trace);
	demo_nic_close();
	demo_gpu_close();
	/* Nobody has compared everything if it stopped on the way */
	if (d.exit_code)
		d.intact = false;
	check_expectation(&d);

	if (d.error[0])
		fprintf(stderr, "p2p_demo: %s: %s\n",
			scenario_names[d.scenario], d.error);
	if (print_result(&d) && !d.exit_code)
		d.exit_code = EXIT_FAILED;
	return d.exit_code;
}
