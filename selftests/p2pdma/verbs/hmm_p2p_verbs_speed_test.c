// SPDX-License-Identifier: GPL-2.0
/*
 * How long a verbs device takes to write and read memory in a GPU, in three ways:
 *
 *	in-place	through a region that pages on demand, in the GPU
 *	home		the same with the policy "never": the access brings the
 *			pages home, and then they move to the GPU again
 *	dma-buf		through a region of a dma-buf, if the GPU's plug-in gives one
 *
 * For each way, operation and size there is a line:
 *
 *	# speed WAY OPERATION BYTES SECONDS ROUNDS peer=PAGES home=PAGES
 *
 * SECONDS is the median of the rounds. A round has one transfer, so small sizes show
 * the latency, and large ones the bandwidth. "in-place" has one more transfer first,
 * which is not timed: the device has no page faults after it. The kernel counted
 * PAGES as reached in the GPU, and as not reached there.
 *
 * No speed is an error. The counters must say that "in-place" brought no page home,
 * and "home" reached none in the GPU, and contents must be right.
 *
 * Sizes are 4 KiB to 16 MiB, or to $P2P_SPEED_MAX bytes. $P2P_VERBS_ROUNDS is the
 * number of rounds. $P2PTEST_GPU, $P2P_VERBS_* and $P2PTEST_EXPECT are as for
 * hmm_p2p_verbs_gpu_test. The test has to be alone on the machine, like that one.
 */
#include "../gpu/gpu.h"
#include "../p2p_harness.h"
#include "verbs.h"

#include <time.h>

#define SPEED_MAX	(16UL << 20)
#define ROUNDS		21

/* The shortest time that InfiniBand has, after 0: 10 us */
#define RNR_TIMER	1

static const struct {
	enum ibv_wr_opcode code;
	const char *name;
} ops[] = {
	{ IBV_WR_RDMA_WRITE, "WRITE" },
	{ IBV_WR_RDMA_READ, "READ" },
};

FIXTURE(speed)
{
	struct verbs v;
	struct verbs_link link;
	struct gpu gpu;
	struct p2p_buf data;		/* what the device writes and has read */
	struct ibv_mr *data_mr;
	size_t max;
	unsigned int rounds;
	bool peer;			/* there must be a path to the GPU */
};

#define SELF FIXTURE_DATA(speed)

static unsigned long number(const char *name, unsigned long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoul(text, NULL, 0) : otherwise;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Print the line of a way, an operation and a size */
static void tell(SELF *self, const char *way, int op, size_t len, double *took,
		 __u64 peer, __u64 home)
{
	qsort(took, self->rounds, sizeof(*took), compare);
	ksft_print_msg("speed %s %s %zu %.9f %u peer=%llu home=%llu\n", way,
		       ops[op].name, len, took[self->rounds / 2], self->rounds,
		       peer, home);
}

/* Without a pause, unlike verbs_wait() */
static int wait_busy(struct verbs_link *link)
{
	const double end = now() + VERBS_WAIT_MS / 1e3;
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(link->cq[ASKS], 1, &wc);
		if (n)
			return n < 0 ? -EIO : (int)wc.status;
	} while (now() < end);
	return -ETIMEDOUT;
}

/* Write or read what @seed says, and tell how long that took */
static double transfer(struct __test_metadata *_metadata, SELF *self, int op,
		       struct verbs_end theirs, size_t len, __u64 seed)
{
	const struct verbs_end mine = { self->data.p, self->data_mr };
	const bool writes = ops[op].code == IBV_WR_RDMA_WRITE;
	double start, took;
	int status;

	if (writes)
		p2p_fill(self->data.p, seed, 0, len);
	else
		memset(self->data.p, 0, len);
	start = now();
	status = verbs_post(&self->link, ops[op].code, mine, theirs, len);
	if (!status)
		status = wait_busy(&self->link);
	took = now() - start;
	ASSERT_EQ(IBV_WC_SUCCESS, status)
		TH_LOG("RDMA %s: %s", ops[op].name, verbs_str(status));
	if (!writes)
		p2p_expect_pattern(_metadata, "NIC read", self->data.p, seed, 0,
				   len);
	return took;
}

/* Move a buffer to the GPU, and tell how long that took */
static double to_gpu(struct __test_metadata *_metadata, SELF *self,
		     const struct p2p_buf *buf)
{
	double start = now(), took;

	ASSERT_EQ(0, gpu_move(&self->gpu, buf->p, buf->len))
		TH_LOG("%s", self->gpu.why);
	took = now() - start;
	ASSERT_EQ((long)buf->pages, gpu_resident(&self->gpu, buf->p, buf->len))
		TH_LOG("%s has not moved all pages", self->gpu.ops->driver);
	return took;
}

/* Memory as the kernel gives it to a program that asks for huge pages */
static void alloc(struct __test_metadata *_metadata, struct p2p_buf *buf,
		  size_t len)
{
	*buf = (struct p2p_buf){ .len = len, .pages = len / P2P_PAGE };
	buf->p = len < P2P_HUGE ? p2p_alloc(len) : p2p_alloc_huge(len);
	ASSERT_NE(NULL, buf->p);
	p2p_fill(buf->p, BEFORE, 0, len);
}

static void expect_counted(struct __test_metadata *_metadata, SELF *self,
			   struct p2p_stats *stats, bool home, size_t pages,
			   __u64 *at_peer, __u64 *at_home)
{
	const __u64 *n = stats->pages;
	int i;

	ASSERT_EQ(0, p2p_stats_since(stats));
	*at_peer = n[P2PTEST_REASON_BUS_ADDR] + n[P2PTEST_REASON_HOST_BRIDGE];
	*at_home = 0;
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++)
		*at_home += n[i];
	*at_home -= *at_peer;
	if (home) {
		EXPECT_EQ(0ULL, *at_peer);
		/*
		 * A huge page comes home as soon as one page of it is met. For a
		 * bad path the device's driver may not ask for peers at all.
		 */
		if (self->peer)
			EXPECT_LE(self->rounds, n[P2PTEST_REASON_POLICY]);
	} else {
		EXPECT_LE(pages, *at_peer);
		EXPECT_EQ(0ULL, *at_home);
	}
}

/* One operation and size, through memory of the process; false: skipped */
static bool measure(struct __test_metadata *_metadata, SELF *self, bool home,
		    int op, size_t len)
{
	const bool writes = ops[op].code == IBV_WR_RDMA_WRITE;
	double *took = calloc(self->rounds, sizeof(*took));
	__u64 seed = BEFORE, at_peer, at_home;
	struct p2p_stats stats;
	struct verbs_end theirs;
	struct p2p_buf buf;
	unsigned int i;

	ASSERT_NE(NULL, took);
	alloc(_metadata, &buf, len);
	theirs.p = buf.p;
	theirs.mr = ibv_reg_mr(self->v.pd, buf.p, len, VERBS_ODP);
	ASSERT_NE(NULL, theirs.mr)
		TH_LOG("no memory region: %s", strerror(errno));
	to_gpu(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	if (!home) {
		/* Now the device learns where the pages are */
		transfer(_metadata, self, op, theirs, len, seed);
		if (!self->peer && !gpu_resident(&self->gpu, buf.p, len))
			P2P_SKIP(return false,
				 "the RDMA device does not reach the GPU's memory");
	}
	for (i = 0; i < self->rounds; i++) {
		if (writes)
			seed = AFTER + i;
		took[i] = transfer(_metadata, self, op, theirs, len, seed);
		ASSERT_EQ(home ? 0 : (long)buf.pages,
			  gpu_resident(&self->gpu, buf.p, len));
		if (home)
			took[i] += to_gpu(_metadata, self, &buf);
	}
	expect_counted(_metadata, self, &stats, home, buf.pages, &at_peer,
		       &at_home);
	p2p_buf_cpu_read(_metadata, &buf, seed);
	tell(self, home ? "home" : "in-place", op, len, took, at_peer, at_home);
	EXPECT_EQ(0, ibv_dereg_mr(theirs.mr));
	EXPECT_EQ(0, munmap(buf.p, len));
	free(took);
	return true;
}

static void measure_all(struct __test_metadata *_metadata, SELF *self, bool home)
{
	size_t len;
	int op;

	for (len = P2P_PAGE; len <= self->max; len *= 4) {
		for (op = 0; op < (int)ARRAY_SIZE(ops); op++) {
			if (!measure(_metadata, self, home, op, len))
				return;
		}
	}
}

FIXTURE_SETUP(speed)
{
	struct ibv_qp_attr attr = { .min_rnr_timer = RNR_TIMER };
	const char *why, *name = getenv("P2PTEST_GPU");
	char policy[16];
	int ret, path = p2p_expect(0);

	if (!p2p_start(_metadata))
		return;
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	self->peer = p2p_peer_path(path);
	self->max = number("P2P_SPEED_MAX", SPEED_MAX);
	self->rounds = number("P2P_VERBS_ROUNDS", ROUNDS);
	ASSERT_LE(P2P_PAGE, self->max);
	ASSERT_LT(0U, self->rounds);
	ret = gpu_open(&self->gpu, name);
	if (ret == -ENODEV && !(name && *name))
		SKIP(return, "no GPU: %s", self->gpu.why);
	ASSERT_EQ(0, ret)
		TH_LOG("P2PTEST_GPU=%s: %s", name, self->gpu.why);
	why = verbs_open(&self->v);
	if (!why && self->v.software)
		why = "the RDMA device has no DMA";
	if (why)
		SKIP(return, "%s", why);
	if (p2p_policy_get(policy, sizeof(policy)))
		SKIP(return, "the kernel has no policy");
	if (strcmp(policy, "auto"))
		SKIP(return, "the policy is %s: tests need auto", policy);
	ASSERT_EQ(0, verbs_link(&self->v, &self->link));
	/* A transfer that meets a page fault is tried again after this time */
	ASSERT_EQ(0, ibv_modify_qp(self->link.qp[ANSWERS], &attr,
				   IBV_QP_MIN_RNR_TIMER));
	p2p_buf_alloc(_metadata, &self->data, self->max / P2P_PAGE, OTHER);
	self->data_mr = ibv_reg_mr(self->v.pd, self->data.p, self->data.len,
				   VERBS_REMOTE);
	ASSERT_NE(NULL, self->data_mr)
		TH_LOG("no memory region: %s", strerror(errno));
	if (!strcmp(self->gpu.ops->driver, "p2ptest"))
		ksft_print_msg("the GPU is emulated: times say nothing about hardware\n");
}

FIXTURE_TEARDOWN(speed)
{
}

TEST_F_TIMEOUT(speed, in_place, TIMEOUT_S)
{
	measure_all(_metadata, self, false);
}

TEST_F_TIMEOUT(speed, home_and_back, TIMEOUT_S)
{
	ASSERT_EQ(0, p2p_policy_set("never"));
	measure_all(_metadata, self, true);
}

/* Through a region of the GPU's memory that is no memory of the process */
TEST_F_TIMEOUT(speed, dma_buf, TIMEOUT_S)
{
	double *took = calloc(self->rounds, sizeof(*took));
	struct verbs_end theirs = {};
	__u64 seed = AFTER;
	unsigned int i;
	size_t len;
	int fd, op;

	ASSERT_NE(NULL, took);
	if (!self->gpu.ops->dma_buf)
		SKIP(return, "no dma-buf: the plug-in of %s gives none",
		     self->gpu.ops->driver);
	fd = self->gpu.ops->dma_buf(&self->gpu, self->data.len);
	ASSERT_LE(0, fd)
		TH_LOG("%s", self->gpu.why);
	theirs.mr = ibv_reg_dmabuf_mr(self->v.pd, 0, self->data.len, 0, fd,
				      VERBS_REMOTE);
	if (!theirs.mr)
		SKIP(return, "no dma-buf: ibv_reg_dmabuf_mr: %s",
		     strerror(errno));
	for (len = P2P_PAGE; len <= self->max; len *= 4) {
		for (op = 0; op < (int)ARRAY_SIZE(ops); op++) {
			/* A read returns the data written last */
			for (i = 0; i < self->rounds; i++) {
				if (ops[op].code == IBV_WR_RDMA_WRITE)
					seed++;
				took[i] = transfer(_metadata, self, op, theirs,
						   len, seed);
			}
			tell(self, "dma-buf", op, len, took, 0, 0);
		}
	}
	EXPECT_EQ(0, ibv_dereg_mr(theirs.mr));
	close(fd);
	free(took);
}

TEST_HARNESS_MAIN
