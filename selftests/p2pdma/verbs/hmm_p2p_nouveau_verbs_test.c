// SPDX-License-Identifier: GPL-2.0
/*
 * Test of RDMA on-demand paging over nouveau's device private memory with a real
 * verbs device: neither side is a test driver
 *
 * It needs what ../nouveau/hmm_p2p_nouveau_test.c and hmm_p2p_verbs_test.c need,
 * but no test device. P2PTEST_EXPECT says what path there is from the RDMA device
 * to the GPU. The tests are alone on the machine: there must be no swap, and
 * nobody else who uses the GPU.
 *
 * Models of both devices take some 30 ms for a page that one reads or writes in
 * the other, so transfers are small. $P2P_VERBS_ROUNDS is how often memory is
 * written and read while it moves.
 */
#include "../nouveau/nouveau.h"
#include "../p2p_harness.h"
#include "verbs.h"

#define PAGES	16UL

/*
 * The kernel ends a page fault with an error if its memory has not stayed where
 * it is for so long (HMM_RANGE_DEFAULT_TIMEOUT)
 */
#define FAULT_MS	1000

FIXTURE(nouveau_verbs)
{
	struct verbs v;
	struct verbs_link link;
	int fd;
	enum p2p_expect path;
	bool implicit;			/* kind of region */
	bool peer;			/* the GPU's pages are reached there */
	bool has_p2p;			/* the kernel counts and has a policy */
};

#define SELF FIXTURE_DATA(nouveau_verbs)

FIXTURE_VARIANT(nouveau_verbs)
{
	bool implicit;
};

FIXTURE_VARIANT_ADD(nouveau_verbs, explicit) { .implicit = false };
FIXTURE_VARIANT_ADD(nouveau_verbs, implicit) { .implicit = true };

FIXTURE_SETUP(nouveau_verbs)
{
	int path = p2p_expect(0);
	const char *why;

	self->implicit = variant->implicit;
	self->fd = nouveau_open();
	if (self->fd == -ENODEV)
		SKIP(return, "no GPU of nouveau's");
	ASSERT_LE(0, self->fd);
	why = verbs_open(&self->v);
	if (why)
		SKIP(return, "%s", why);
	if (self->implicit && !self->v.implicit)
		SKIP(return, "the RDMA device has no implicit regions");
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	if (path == P2P_EXPECT_UNKNOWN)
		SKIP(return, "P2PTEST_EXPECT does not say what path there is");
	self->path = path;
	self->peer = p2p_peer_path(path) && !self->v.software;
	ASSERT_EQ(0, verbs_link(&self->v, &self->link));
	self->has_p2p = !p2p_policy_set("auto");
}

/* What a test has of verbs goes with its process */
FIXTURE_TEARDOWN(nouveau_verbs)
{
	if (self->fd >= 0)
		close(self->fd);
}

/* Memory, and its region */

struct region {
	struct p2p_buf buf;
	struct ibv_mr *mr;
};

static struct verbs_end at(const struct region *r, size_t pos)
{
	return (struct verbs_end){ .p = r->buf.p + pos, .mr = r->mr };
}

/* What pages on demand is a region of everything if it is implicit */
static void reg(struct __test_metadata *_metadata, SELF *self,
		struct region *r, int access)
{
	bool all = self->implicit && (access & IBV_ACCESS_ON_DEMAND);

	r->mr = ibv_reg_mr(self->v.pd, all ? NULL : r->buf.p,
			   all ? SIZE_MAX : r->buf.len, access);
	ASSERT_NE(NULL, r->mr)
		TH_LOG("no memory region: %s", strerror(errno));
}

static void region_init(struct __test_metadata *_metadata, SELF *self,
			struct region *r, size_t pages, __u64 seed, int access)
{
	p2p_buf_alloc(_metadata, &r->buf, pages, seed);
	reg(_metadata, self, r, access);
}

static void dereg(struct __test_metadata *_metadata, struct region *r)
{
	EXPECT_EQ(0, ibv_dereg_mr(r->mr));
}

static void region_free(struct __test_metadata *_metadata, struct region *r)
{
	dereg(_metadata, r);
	EXPECT_EQ(0, munmap(r->buf.p, r->buf.len));
}

static long resident(const struct region *r)
{
	return nouveau_resident(r->buf.p, r->buf.len);
}

static void to_vram(struct __test_metadata *_metadata, SELF *self,
		    struct region *r)
{
	ASSERT_EQ(0, nouveau_to_vram(self->fd, r->buf.p, r->buf.len));
	ASSERT_EQ((long)r->buf.pages, resident(r));
}

/* The CPU finds what it should, and with that all of it is in RAM */
static void all_home(struct __test_metadata *_metadata, struct region *r,
		     __u64 seed)
{
	p2p_buf_cpu_read(_metadata, &r->buf, seed);
	EXPECT_EQ(0, resident(r));
}

/* Transfers between pinned memory, from its beginning, and part of a region */

static int transfer(SELF *self, enum ibv_wr_opcode op, struct region *data,
		    struct region *r, size_t pos, size_t len)
{
	return verbs_do(&self->link, op, at(data, 0), at(r, pos), len);
}

static void nic_write(struct __test_metadata *_metadata, SELF *self,
		      struct region *data, struct region *r, size_t pos,
		      size_t len, __u64 seed)
{
	int status;

	p2p_fill(data->buf.p, seed, pos, len);
	status = transfer(self, IBV_WR_RDMA_WRITE, data, r, pos, len);
	EXPECT_EQ(IBV_WC_SUCCESS, status) {
		TH_LOG("NIC write: %s", verbs_str(status));
	}
}

static void nic_read(struct __test_metadata *_metadata, SELF *self,
		     struct region *data, struct region *r, size_t pos,
		     size_t len, __u64 seed)
{
	int status;

	memset(data->buf.p, 0, len);
	status = transfer(self, IBV_WR_RDMA_READ, data, r, pos, len);
	EXPECT_EQ(IBV_WC_SUCCESS, status) {
		TH_LOG("NIC read: %s", verbs_str(status));
	}
	p2p_expect_pattern(_metadata, "NIC read", data->buf.p, seed, pos, len);
}

static void stats_start(struct __test_metadata *_metadata, SELF *self,
			struct p2p_stats *stats)
{
	if (self->has_p2p)
		ASSERT_EQ(0, p2p_stats_read(stats));
}

/*
 * The kernel counted that the device met @vram pages of VRAM. A page may count
 * more than once, because devices repeat page faults, and a huge page comes home
 * as soon as one page of it is met.
 */
static void expect_met(struct __test_metadata *_metadata, SELF *self,
		       struct p2p_stats *stats, __u64 vram)
{
	int i, reason = p2p_path_reason(self->path);

	if (!self->has_p2p)
		return;
	ASSERT_EQ(0, p2p_stats_since(stats));
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++) {
		bool counts = i == reason && !self->v.software;
		__u64 least = counts ? (self->peer ? vram : 1) : 0;
		__u64 seen = stats->pages[i];

		EXPECT_TRUE(counts ? seen >= least : !seen) {
			TH_LOG("counted: %s, %llu times, and not %llu",
			       p2p_reason_names[i], seen, least);
		}
	}
}

TEST_F_TIMEOUT(nouveau_verbs, resident, TIMEOUT_S)
{
	const size_t pages = 64;
	struct region r, data;
	struct p2p_stats stats;

	region_init(_metadata, self, &r, pages, BEFORE, VERBS_ODP);
	region_init(_metadata, self, &data, pages, OTHER, VERBS_REMOTE);
	to_vram(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	EXPECT_EQ(self->peer ? (long)pages : 0, resident(&r));
	expect_met(_metadata, self, &stats, pages);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	EXPECT_EQ(self->peer ? (long)pages : 0, resident(&r));
	all_home(_metadata, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Of eight pages four are in VRAM */
TEST_F_TIMEOUT(nouveau_verbs, mixed, TIMEOUT_S)
{
	const size_t group = 4 * P2P_PAGE;
	struct region r, data;
	struct p2p_stats stats;
	size_t pos;

	region_init(_metadata, self, &r, 2 * PAGES, BEFORE, VERBS_ODP);
	region_init(_metadata, self, &data, 2 * PAGES, OTHER, VERBS_REMOTE);
	for (pos = group; pos < r.buf.len; pos += 2 * group)
		ASSERT_EQ(0, nouveau_to_vram(self->fd, r.buf.p + pos, group));
	ASSERT_EQ((long)PAGES, resident(&r));
	stats_start(_metadata, self, &stats);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	expect_met(_metadata, self, &stats, PAGES);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	for (pos = 0; pos < r.buf.len; pos += group) {
		bool vram = self->peer && pos / group % 2;

		EXPECT_EQ(vram ? 4 : 0, nouveau_resident(r.buf.p + pos, group));
	}
	all_home(_metadata, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Part of a huge page, and the rest stays as it is */
TEST_F_TIMEOUT(nouveau_verbs, huge, TIMEOUT_S)
{
	const size_t pos = 300 * P2P_PAGE, len = PAGES * P2P_PAGE;
	const size_t end = pos + len;
	struct region r, data;
	struct p2p_stats stats;

	if (!p2p_buf_alloc_huge(_metadata, &r.buf, BEFORE))
		return;
	reg(_metadata, self, &r, VERBS_ODP);
	region_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	to_vram(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_read(_metadata, self, &data, &r, pos, len, BEFORE);
	expect_met(_metadata, self, &stats, PAGES);
	nic_write(_metadata, self, &data, &r, pos, len, AFTER);
	nic_read(_metadata, self, &data, &r, pos, len, AFTER);
	EXPECT_EQ(self->peer ? (long)PAGES : 0,
		  nouveau_resident(r.buf.p + pos, len));
	if (self->peer)
		EXPECT_EQ((long)r.buf.pages, resident(&r));
	p2p_expect_pattern(_metadata, "before", r.buf.p, BEFORE, 0, pos);
	p2p_expect_pattern(_metadata, "written", r.buf.p + pos, AFTER, pos,
			   len);
	p2p_expect_pattern(_metadata, "after", r.buf.p + end, BEFORE, end,
			   r.buf.len - end);
	EXPECT_EQ(0, resident(&r));
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* The device follows pages that come home, change, and are in VRAM again */
TEST_F_TIMEOUT(nouveau_verbs, after_home, TIMEOUT_S)
{
	struct region r, data;
	struct p2p_stats stats;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	region_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	to_vram(_metadata, self, &r);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	all_home(_metadata, &r, AFTER);
	p2p_fill(r.buf.p, AFTER + 1, 0, r.buf.len);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER + 1);
	EXPECT_EQ(0, resident(&r));
	to_vram(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER + 1);
	expect_met(_metadata, self, &stats, PAGES);
	EXPECT_EQ(self->peer ? (long)PAGES : 0, resident(&r));
	all_home(_metadata, &r, AFTER + 1);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* The region is the parent's, whatever the child does with pages they share */
TEST_F_TIMEOUT(nouveau_verbs, fork_cow, TIMEOUT_S)
{
	int to_child[2], to_parent[2];
	struct region r, data;
	pid_t pid;
	char c;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	region_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	to_vram(_metadata, self, &r);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, BEFORE);
	ASSERT_EQ(0, pipe(to_child));
	ASSERT_EQ(0, pipe(to_parent));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		size_t same = p2p_compare(r.buf.p, BEFORE, 0, r.buf.len);

		p2p_fill(r.buf.p, OTHER, 0, r.buf.len);
		if (write(to_parent[1], "", 1) != 1 ||
		    read(to_child[0], &c, 1) != 1)
			_exit(2);
		_exit(same != r.buf.len ||
		      p2p_compare(r.buf.p, OTHER, 0, r.buf.len) != r.buf.len);
	}
	ASSERT_EQ(1, read(to_parent[0], &c, 1));
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, BEFORE);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	all_home(_metadata, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* What is gone is out of reach; what remains is where it was */
TEST_F_TIMEOUT(nouveau_verbs, munmap, TIMEOUT_S)
{
	const size_t hole = 4 * P2P_PAGE, rest = 8 * P2P_PAGE;
	struct region r, data;
	size_t after;
	int status;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	region_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	after = r.buf.len - rest;
	to_vram(_metadata, self, &r);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, BEFORE);
	/* Others get memory there soon, such as new queue pairs */
	ASSERT_EQ(0, munmap(r.buf.p + hole, rest - hole));
	status = transfer(self, IBV_WR_RDMA_READ, &data, &r, hole, P2P_PAGE);
	EXPECT_TRUE(status == IBV_WC_REM_ACCESS_ERR ||
		    status == IBV_WC_REM_OP_ERR) {
		TH_LOG("%s", verbs_str(status));
	}
	ASSERT_EQ(0, verbs_unlink(&self->link));
	ASSERT_EQ(0, verbs_link(&self->v, &self->link));

	nic_read(_metadata, self, &data, &r, 0, hole, BEFORE);
	nic_read(_metadata, self, &data, &r, rest, after, BEFORE);
	nic_write(_metadata, self, &data, &r, rest, after, AFTER);
	EXPECT_EQ(self->peer ? 4 : 0, nouveau_resident(r.buf.p, hole));
	EXPECT_EQ(self->peer ? 8 : 0, nouveau_resident(r.buf.p + rest, after));
	p2p_expect_pattern(_metadata, "before", r.buf.p, BEFORE, 0, hole);
	p2p_expect_pattern(_metadata, "after", r.buf.p + rest, AFTER, rest,
			   after);
	dereg(_metadata, &r);
	EXPECT_EQ(0, munmap(r.buf.p, hole));
	EXPECT_EQ(0, munmap(r.buf.p + rest, after));
	region_free(_metadata, &data);
}

/* The GPU's file is closed, and what is in VRAM can be reached as before */
TEST_F_TIMEOUT(nouveau_verbs, closed, TIMEOUT_S)
{
	struct region r, data;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	region_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	to_vram(_metadata, self, &r);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len / 2, AFTER);
	ASSERT_EQ(0, close(self->fd));
	self->fd = -1;
	nic_read(_metadata, self, &data, &r, 0, r.buf.len / 2, AFTER);
	nic_read(_metadata, self, &data, &r, r.buf.len / 2, r.buf.len / 2,
		 BEFORE);
	EXPECT_EQ(self->peer ? (long)PAGES : 0, resident(&r));
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER + 1);
	all_home(_metadata, &r, AFTER + 1);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Memory that moves while the device writes and reads it */

struct mover {
	pthread_t thread;
	struct region *r;
	int fd;
	bool stop;
	unsigned int done;	/* rounds of the device */
	long moved;		/* pages that were seen in VRAM */
	int ret;
};

static unsigned int rounds(void)
{
	const char *text = getenv("P2P_VERBS_ROUNDS");

	return text && *text ? strtoul(text, NULL, 0) : 10;
}

/*
 * To VRAM, and home as the CPU touches it at times. As long as no round gets
 * done, moves become rarer: page faults need the time.
 */
static void *mover_run(void *arg)
{
	unsigned int i, done, seen = 0, pause = 1;
	struct mover *m = arg;
	size_t pos;

	for (i = 0; !__atomic_load_n(&m->stop, __ATOMIC_RELAXED); i++) {
		m->ret = nouveau_to_vram(m->fd, m->r->buf.p, m->r->buf.len);
		if (m->ret)
			break;
		m->moved += resident(m->r);
		done = __atomic_load_n(&m->done, __ATOMIC_RELAXED);
		if (done != seen)
			pause = 1;
		else if (pause < 4 * FAULT_MS)
			pause *= 2;
		seen = done;
		p2p_sleep_ms(pause);
		for (pos = 0; i & 1 && pos < m->r->buf.len; pos += P2P_PAGE)
			p2p_compare_byte(m->r->buf.p + pos, 0, 1);
	}
	return NULL;
}

/*
 * While pages move, a page fault may run out of time on a busy machine: then
 * this repeats the transfer. An error that comes sooner has another cause.
 */
static int transfer_again(SELF *self, enum ibv_wr_opcode op,
			  struct region *data, struct region *r)
{
	__u64 start;
	int status;

	for (;;) {
		start = p2p_now_ms();
		status = transfer(self, op, data, r, 0, r->buf.len);
		if (status != IBV_WC_REM_ACCESS_ERR &&
		    status != IBV_WC_REM_OP_ERR)
			return status;
		if (p2p_now_ms() - start < FAULT_MS)
			return status;
		if (verbs_unlink(&self->link) ||
		    verbs_link(&self->v, &self->link))
			return status;
	}
}

TEST_F_TIMEOUT(nouveau_verbs, moves, TIMEOUT_S)
{
	struct region r, data;
	struct mover m = { .r = &r, .fd = self->fd };
	unsigned int i, count = rounds();
	int status;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	region_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	to_vram(_metadata, self, &r);
	ASSERT_EQ(0, pthread_create(&m.thread, NULL, mover_run, &m));
	for (i = 0; i < count && !_metadata->exit_code; i++) {
		p2p_fill(data.buf.p, AFTER + i, 0, data.buf.len);
		status = transfer_again(self, IBV_WR_RDMA_WRITE, &data, &r);
		EXPECT_EQ(IBV_WC_SUCCESS, status) {
			TH_LOG("NIC write: %s", verbs_str(status));
		}
		memset(data.buf.p, 0, data.buf.len);
		status = transfer_again(self, IBV_WR_RDMA_READ, &data, &r);
		EXPECT_EQ(IBV_WC_SUCCESS, status) {
			TH_LOG("NIC read: %s", verbs_str(status));
		}
		p2p_expect_pattern(_metadata, "NIC read", data.buf.p,
				   AFTER + i, 0, data.buf.len);
		__atomic_store_n(&m.done, i + 1, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&m.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(m.thread, NULL));
	EXPECT_EQ(0, m.ret);
	EXPECT_LT(0, m.moved);
	if (count)
		all_home(_metadata, &r, AFTER + i - 1);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

TEST_HARNESS_MAIN
