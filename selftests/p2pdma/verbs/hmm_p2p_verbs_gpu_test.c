// SPDX-License-Identifier: GPL-2.0
/*
 * Test of RDMA on-demand paging over the device private memory of any GPU, with
 * any verbs device: what both sides do to pages that stay in the GPU
 *
 * $P2PTEST_GPU names the GPU, as ../gpu/gpu.h has it; then its absence is an error.
 * If nobody says, it is the first one that there is. $P2P_VERBS_DEVICE does the
 * same for the RDMA device. P2PTEST_EXPECT says what path there is from it to the
 * GPU; if nobody says, one page is tried, and all others have to fare as it did.
 * hmm_p2p_verbs_test.c has what only the test GPU can tell.
 *
 * $P2P_VERBS_PEER names a second RDMA device, with the same path to the GPU, whose
 * port reaches the first one's. Then the second one asks the first one for each
 * transfer, and not the first one itself.
 *
 * The tests are alone on the machine: there must be no swap, and nobody else whose
 * pages in a GPU an RDMA device meets. Models of two devices take some 30 ms for a
 * page that one reads or writes in the other, so transfers are small.
 * $P2P_VERBS_ROUNDS is how often memory is written and read while it moves.
 */
#include "../gpu/gpu.h"
#include "../p2p_harness.h"
#include "verbs.h"

/* GPUs may move 64 KiB at a time, at least */
#define GROUP	(16 * P2P_PAGE)
#define PAGES	16UL

/* What the pages before and after a buffer hold */
#define GUARD	400

FIXTURE(verbs_gpu)
{
	struct verbs v;
	struct verbs other;		/* the device that asks, if it is another */
	struct verbs *asks;		/* that one, or @v */
	struct verbs_link link;
	struct gpu gpu;
	bool implicit;			/* kind of region */
	bool has_p2p;			/* the kernel counts and has a policy */
	bool peer;			/* the GPU's pages are reached there */
	int reason;			/* what pages in the GPU meet */
};

#define SELF FIXTURE_DATA(verbs_gpu)

FIXTURE_VARIANT(verbs_gpu)
{
	bool implicit;
};

FIXTURE_VARIANT_ADD(verbs_gpu, explicit) { .implicit = false };
FIXTURE_VARIANT_ADD(verbs_gpu, implicit) { .implicit = true };

/* Memory between two guards, and its region */

struct region {
	struct p2p_buf buf;
	struct ibv_mr *mr;
	unsigned char *room;	/* the whole mapping */
};

static struct verbs_end at(const struct region *r, size_t pos)
{
	return (struct verbs_end){ .p = r->buf.p + pos, .mr = r->mr };
}

static void map(struct __test_metadata *_metadata, struct region *r,
		size_t pages, __u64 seed, int advice)
{
	unsigned char *first;
	size_t len;

	memset(r, 0, sizeof(*r));
	r->buf.pages = pages;
	r->buf.len = pages * P2P_PAGE;
	len = r->buf.len + 2 * P2P_PAGE;
	r->room = mmap(NULL, r->buf.len + 2 * P2P_HUGE, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)r->room);
	r->buf.p = (unsigned char *)(((uintptr_t)r->room + P2P_PAGE +
				      P2P_HUGE - 1) & ~(P2P_HUGE - 1));
	first = r->buf.p - P2P_PAGE;
	ASSERT_EQ(first, mmap(first, len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			      MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	madvise(first, len, MADV_NOHUGEPAGE);
	madvise(r->buf.p, r->buf.len, advice);
	p2p_fill(first, GUARD, 0, P2P_PAGE);
	p2p_fill(r->buf.p, seed, 0, r->buf.len);
	p2p_fill(r->buf.p + r->buf.len, GUARD, P2P_PAGE, P2P_PAGE);
}

/* A region on demand covers the whole address space if it is implicit */
static void reg_at(struct __test_metadata *_metadata, SELF *self,
		   struct verbs *v, struct region *r, int access)
{
	bool all = self->implicit && (access & IBV_ACCESS_ON_DEMAND);

	r->mr = ibv_reg_mr(v->pd, all ? NULL : r->buf.p,
			   all ? SIZE_MAX : r->buf.len, access);
	ASSERT_NE(NULL, r->mr)
		TH_LOG("no memory region: %s", strerror(errno));
}

static void reg(struct __test_metadata *_metadata, SELF *self,
		struct region *r, int access)
{
	reg_at(_metadata, self, &self->v, r, access);
}

static void region_init(struct __test_metadata *_metadata, SELF *self,
			struct region *r, size_t pages, __u64 seed, int access)
{
	map(_metadata, r, pages, seed, MADV_NOHUGEPAGE);
	reg(_metadata, self, r, access);
}

/* Pinned memory of the device that asks */
static void data_init(struct __test_metadata *_metadata, SELF *self,
		      struct region *data, size_t pages)
{
	map(_metadata, data, pages, OTHER, MADV_NOHUGEPAGE);
	reg_at(_metadata, self, self->asks, data, VERBS_REMOTE);
}

static void region_free(struct __test_metadata *_metadata, struct region *r)
{
	EXPECT_EQ(0, ibv_dereg_mr(r->mr));
	EXPECT_EQ(0, munmap(r->room, r->buf.len + 2 * P2P_HUGE));
}

static void move(struct __test_metadata *_metadata, SELF *self, void *p,
		 size_t len)
{
	ASSERT_EQ(0, gpu_move(&self->gpu, p, len))
		TH_LOG("%s", self->gpu.why);
}

static long resident_part(struct __test_metadata *_metadata, SELF *self,
			  const struct region *r, size_t pos, size_t len)
{
	long n = gpu_resident(&self->gpu, r->buf.p + pos, len);

	EXPECT_LE(0, n) {
		TH_LOG("%s", self->gpu.why);
	}
	return n;
}

static long resident(struct __test_metadata *_metadata, SELF *self,
		     const struct region *r)
{
	return resident_part(_metadata, self, r, 0, r->buf.len);
}

/* The guards, too: that finds who writes beyond the buffer in the GPU */
static void to_gpu(struct __test_metadata *_metadata, SELF *self,
		   struct region *r)
{
	move(_metadata, self, r->buf.p, r->buf.len);
	move(_metadata, self, r->buf.p - P2P_PAGE, P2P_PAGE);
	move(_metadata, self, r->buf.p + r->buf.len, P2P_PAGE);
	ASSERT_EQ((long)r->buf.pages, resident(_metadata, self, r))
		TH_LOG("%s has not moved all pages", self->gpu.ops->driver);
}

static void guards(struct __test_metadata *_metadata, struct region *r)
{
	p2p_expect_pattern(_metadata, "guard before", r->buf.p - P2P_PAGE,
			   GUARD, 0, P2P_PAGE);
	p2p_expect_pattern(_metadata, "guard after", r->buf.p + r->buf.len,
			   GUARD, P2P_PAGE, P2P_PAGE);
}

/* The CPU finds what it should, and with that all of it is in RAM */
static void all_home(struct __test_metadata *_metadata, SELF *self,
		     struct region *r, __u64 seed)
{
	p2p_buf_cpu_read(_metadata, &r->buf, seed);
	guards(_metadata, r);
	EXPECT_EQ(0, resident(_metadata, self, r));
}

/* So many pages are in the GPU, if the device reaches them there */
static void expect_resident(struct __test_metadata *_metadata, SELF *self,
			    struct region *r, size_t pos, size_t len)
{
	EXPECT_EQ(self->peer ? (long)(len / P2P_PAGE) : 0,
		  resident_part(_metadata, self, r, pos, len));
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

static void gpu_reads(struct __test_metadata *_metadata, SELF *self,
		      struct region *r, __u64 seed)
{
	void *seen = calloc(1, r->buf.len);

	ASSERT_NE(NULL, seen);
	EXPECT_EQ(0, self->gpu.ops->read(&self->gpu, r->buf.p, seen,
					 r->buf.len)) {
		TH_LOG("%s", self->gpu.why);
	}
	p2p_expect_pattern(_metadata, "GPU read", seen, seed, 0, r->buf.len);
	free(seen);
}

static void gpu_writes(struct __test_metadata *_metadata, SELF *self,
		       struct region *r, __u64 seed)
{
	void *data = malloc(r->buf.len);

	ASSERT_NE(NULL, data);
	p2p_fill(data, seed, 0, r->buf.len);
	EXPECT_EQ(0, self->gpu.ops->write(&self->gpu, r->buf.p, data,
					  r->buf.len)) {
		TH_LOG("%s", self->gpu.why);
	}
	free(data);
}

static void stats_start(struct __test_metadata *_metadata, SELF *self,
			struct p2p_stats *stats)
{
	if (self->has_p2p)
		ASSERT_EQ(0, p2p_stats_read(stats));
}

/*
 * The kernel counted that the device met @vram pages in the GPU. A page may count
 * more than once, because devices repeat page faults, and a huge page comes home
 * as soon as one page of it is met.
 */
static void expect_met(struct __test_metadata *_metadata, SELF *self,
		       struct p2p_stats *stats, __u64 vram)
{
	int i;

	if (!self->has_p2p)
		return;
	ASSERT_EQ(0, p2p_stats_since(stats));
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++) {
		bool counts = i == self->reason && !self->v.software;
		__u64 least = counts ? (self->peer ? vram : 1) : 0;
		__u64 seen = stats->pages[i];

		EXPECT_TRUE(counts ? seen >= least : !seen) {
			TH_LOG("counted: %s, %llu times, and not %llu",
			       p2p_reason_names[i], seen, least);
		}
	}
}

static bool is_peer(int reason)
{
	return reason == P2PTEST_REASON_BUS_ADDR ||
	       reason == P2PTEST_REASON_HOST_BRIDGE;
}

/* P2PTEST_EXPECT is not set: ask the system what a page in the GPU meets */
static int probe(struct __test_metadata *_metadata, SELF *self)
{
	struct region r, data;
	struct p2p_stats stats;
	int i;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, 1);
	to_gpu(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_write(_metadata, self, &data, &r, 0, P2P_PAGE, AFTER);
	ASSERT_EQ(0, p2p_stats_since(&stats));
	region_free(_metadata, &r);
	region_free(_metadata, &data);
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++) {
		if (stats.pages[i])
			return i;
	}
	return P2PTEST_REASON_NONE;
}

FIXTURE_SETUP(verbs_gpu)
{
	const char *why, *name = getenv("P2PTEST_GPU");
	char policy[16];
	int ret, path = p2p_expect(0);

	if (!p2p_start(_metadata))
		return;
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	ret = gpu_open(&self->gpu, name);
	if (ret == -ENODEV && !(name && *name))
		SKIP(return, "no GPU: %s", self->gpu.why);
	ASSERT_EQ(0, ret)
		TH_LOG("P2PTEST_GPU=%s: %s", name, self->gpu.why);
	why = verbs_open(&self->v);
	if (why)
		SKIP(return, "%s", why);
	self->asks = &self->v;
	if (verbs_has_peer()) {
		self->asks = &self->other;
		why = verbs_open_peer(&self->other);
		ASSERT_EQ(NULL, why)
			TH_LOG("P2P_VERBS_PEER: %s", why);
	}
	self->implicit = variant->implicit;
	if (self->implicit && !(self->v.implicit && self->asks->implicit))
		SKIP(return, "the RDMA device has no implicit regions");
	ASSERT_EQ(0, verbs_link_from(self->asks, &self->v, &self->link));
	/* Only a kernel without PCI_P2PDMA has no policy */
	self->has_p2p = !p2p_policy_get(policy, sizeof(policy));
	if (self->has_p2p && strcmp(policy, "auto"))
		SKIP(return, "the policy is %s: tests need auto", policy);
	if (path != P2P_EXPECT_UNKNOWN)
		ASSERT_EQ(self->has_p2p, path != P2P_EXPECT_NONE);
	self->reason = p2p_path_reason(path);
	if (path == P2P_EXPECT_UNKNOWN && self->has_p2p && !self->v.software) {
		self->reason = probe(_metadata, self);
		TH_LOG("%s and %s: %s", self->gpu.ops->driver,
		       ibv_get_device_name(self->v.ctx->device),
		       p2p_reason_names[self->reason]);
	}
	self->peer = is_peer(self->reason) && !self->v.software;
}

FIXTURE_TEARDOWN(verbs_gpu)
{
}

/* Contents in both directions, and at home by the GPU's own copy engine */
TEST_F_TIMEOUT(verbs_gpu, contents, TIMEOUT_S)
{
	const size_t pages = 64;
	struct region r, data;
	struct p2p_stats stats;

	region_init(_metadata, self, &r, pages, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, pages);
	to_gpu(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, BEFORE);
	expect_met(_metadata, self, &stats, pages);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	all_home(_metadata, self, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Written where they are, before anybody has read them */
TEST_F_TIMEOUT(verbs_gpu, write_first, TIMEOUT_S)
{
	struct region r, data;
	struct p2p_stats stats;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	to_gpu(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	expect_met(_metadata, self, &stats, PAGES);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	all_home(_metadata, self, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

static void all_there(struct __test_metadata *_metadata, SELF *self,
		      struct region *data, struct region *r)
{
	expect_resident(_metadata, self, data, 0, data->buf.len);
	expect_resident(_metadata, self, r, 0, r->buf.len);
}

/* From the GPU to the GPU: both sides page on demand, and stay where they are */
TEST_F_TIMEOUT(verbs_gpu, both_sides, TIMEOUT_S)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ,
	};
	struct region r, data, *from, *to;
	struct p2p_stats stats;
	unsigned int i;
	int status;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	map(_metadata, &data, PAGES, OTHER, MADV_NOHUGEPAGE);
	reg_at(_metadata, self, self->asks, &data, VERBS_ODP);
	for (i = 0; i < ARRAY_SIZE(ops); i++) {
		from = ops[i] == IBV_WR_RDMA_READ ? &r : &data;
		to = ops[i] == IBV_WR_RDMA_READ ? &data : &r;
		p2p_fill(from->buf.p, AFTER + i, 0, from->buf.len);
		p2p_fill(to->buf.p, OTHER, 0, to->buf.len);
		to_gpu(_metadata, self, &data);
		to_gpu(_metadata, self, &r);
		stats_start(_metadata, self, &stats);
		status = transfer(self, ops[i], &data, &r, 0, r.buf.len);
		EXPECT_EQ(IBV_WC_SUCCESS, status) {
			TH_LOG("transfer %u: %s", i, verbs_str(status));
		}
		expect_met(_metadata, self, &stats, 2 * PAGES);
		all_there(_metadata, self, &data, &r);
		all_home(_metadata, self, to, AFTER + i);
		all_home(_metadata, self, from, AFTER + i);
	}
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* The GPU reads what the NIC writes, and the NIC what the GPU writes */
TEST_F_TIMEOUT(verbs_gpu, gpu_access, TIMEOUT_S)
{
	struct region r, data;

	if (!self->gpu.ops->read || !self->gpu.ops->write)
		SKIP(return, "the GPU's plug-in cannot read and write");
	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	to_gpu(_metadata, self, &r);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	gpu_reads(_metadata, self, &r, AFTER);
	gpu_writes(_metadata, self, &r, AFTER + 1);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER + 1);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	all_home(_metadata, self, &r, AFTER + 1);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* The control: pages come home, and nothing else differs */
TEST_F_TIMEOUT(verbs_gpu, policy_never, TIMEOUT_S)
{
	const int reason = self->reason;
	const bool peer = self->peer;
	struct region r, data;
	struct p2p_stats stats;

	if (!self->has_p2p)
		SKIP(return, "the kernel has no policy");
	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	ASSERT_EQ(0, p2p_policy_set("never"));
	self->reason = P2PTEST_REASON_POLICY;
	self->peer = false;
	to_gpu(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	expect_met(_metadata, self, &stats, PAGES);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	all_home(_metadata, self, &r, AFTER);

	ASSERT_EQ(0, p2p_policy_set("auto"));
	self->reason = reason;
	self->peer = peer;
	to_gpu(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	expect_met(_metadata, self, &stats, PAGES);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	all_home(_metadata, self, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Of each two groups of pages one is in the GPU */
TEST_F_TIMEOUT(verbs_gpu, mixed, TIMEOUT_S)
{
	struct region r, data;
	struct p2p_stats stats;
	size_t pos;

	region_init(_metadata, self, &r, 4 * GROUP / P2P_PAGE, BEFORE,
		    VERBS_ODP);
	data_init(_metadata, self, &data, 4 * GROUP / P2P_PAGE);
	for (pos = GROUP; pos < r.buf.len; pos += 2 * GROUP)
		move(_metadata, self, r.buf.p + pos, GROUP);
	ASSERT_EQ((long)(2 * GROUP / P2P_PAGE), resident(_metadata, self, &r));
	stats_start(_metadata, self, &stats);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	expect_met(_metadata, self, &stats, 2 * GROUP / P2P_PAGE);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	for (pos = 0; pos < r.buf.len; pos += 2 * GROUP) {
		EXPECT_EQ(0, resident_part(_metadata, self, &r, pos, GROUP));
		expect_resident(_metadata, self, &r, pos + GROUP, GROUP);
	}
	all_home(_metadata, self, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Part of a huge page, and the rest stays as it is */
TEST_F_TIMEOUT(verbs_gpu, huge, TIMEOUT_S)
{
	const size_t pos = 300 * P2P_PAGE, len = PAGES * P2P_PAGE;
	const size_t end = pos + len;
	struct region r, data;
	struct p2p_stats stats;

	map(_metadata, &r, P2P_HUGE / P2P_PAGE, BEFORE, MADV_HUGEPAGE);
	if (p2p_huge_bytes(r.buf.p) != (long)P2P_HUGE)
		SKIP(return, "the kernel gives no huge pages");
	reg(_metadata, self, &r, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	to_gpu(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_read(_metadata, self, &data, &r, pos, len, BEFORE);
	expect_met(_metadata, self, &stats, PAGES);
	nic_write(_metadata, self, &data, &r, pos, len, AFTER);
	nic_read(_metadata, self, &data, &r, pos, len, AFTER);
	expect_resident(_metadata, self, &r, pos, len);
	if (self->peer)
		expect_resident(_metadata, self, &r, 0, r.buf.len);
	p2p_expect_pattern(_metadata, "before", r.buf.p, BEFORE, 0, pos);
	p2p_expect_pattern(_metadata, "written", r.buf.p + pos, AFTER, pos,
			   len);
	p2p_expect_pattern(_metadata, "after", r.buf.p + end, BEFORE, end,
			   r.buf.len - end);
	guards(_metadata, &r);
	EXPECT_EQ(0, resident(_metadata, self, &r));
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* The device follows pages that come home, change, and are in the GPU again */
TEST_F_TIMEOUT(verbs_gpu, after_home, TIMEOUT_S)
{
	struct region r, data;
	struct p2p_stats stats;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	to_gpu(_metadata, self, &r);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER);
	all_home(_metadata, self, &r, AFTER);
	p2p_fill(r.buf.p, AFTER + 1, 0, r.buf.len);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER + 1);
	EXPECT_EQ(0, resident(_metadata, self, &r));
	to_gpu(_metadata, self, &r);
	stats_start(_metadata, self, &stats);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, AFTER + 1);
	expect_met(_metadata, self, &stats, PAGES);
	expect_resident(_metadata, self, &r, 0, r.buf.len);
	all_home(_metadata, self, &r, AFTER + 1);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* The region is the parent's, whatever the child does with pages they share */
TEST_F_TIMEOUT(verbs_gpu, fork_cow, TIMEOUT_S)
{
	int to_child[2], to_parent[2];
	struct region r, data;
	pid_t pid;
	char c;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	to_gpu(_metadata, self, &r);
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
	all_home(_metadata, self, &r, AFTER);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Unmapped pages are out of reach; the others are where they were */
TEST_F_TIMEOUT(verbs_gpu, munmap, TIMEOUT_S)
{
	const size_t hole = 4 * P2P_PAGE, rest = 8 * P2P_PAGE;
	struct region r, data;
	unsigned char *end;
	size_t after;
	int status;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	after = r.buf.len - rest;
	to_gpu(_metadata, self, &r);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len, BEFORE);
	/* Others get memory there soon, such as new queue pairs */
	ASSERT_EQ(0, munmap(r.buf.p + hole, rest - hole));
	status = transfer(self, IBV_WR_RDMA_READ, &data, &r, hole, P2P_PAGE);
	EXPECT_TRUE(status == IBV_WC_REM_ACCESS_ERR ||
		    status == IBV_WC_REM_OP_ERR) {
		TH_LOG("%s", verbs_str(status));
	}
	ASSERT_EQ(0, verbs_unlink(&self->link));
	ASSERT_EQ(0, verbs_link_from(self->asks, &self->v, &self->link));

	nic_read(_metadata, self, &data, &r, 0, hole, BEFORE);
	nic_read(_metadata, self, &data, &r, rest, after, BEFORE);
	nic_write(_metadata, self, &data, &r, rest, after, AFTER);
	expect_resident(_metadata, self, &r, 0, hole);
	expect_resident(_metadata, self, &r, rest, after);
	p2p_expect_pattern(_metadata, "before", r.buf.p, BEFORE, 0, hole);
	p2p_expect_pattern(_metadata, "after", r.buf.p + rest, AFTER, rest,
			   after);
	guards(_metadata, &r);
	EXPECT_EQ(0, ibv_dereg_mr(r.mr));
	end = r.room + r.buf.len + 2 * P2P_HUGE;
	EXPECT_EQ(0, munmap(r.room, r.buf.p + hole - r.room));
	EXPECT_EQ(0, munmap(r.buf.p + rest, end - (r.buf.p + rest)));
	region_free(_metadata, &data);
}

/* The GPU's files are closed, and what is in it can be reached as before */
TEST_F_TIMEOUT(verbs_gpu, closed, TIMEOUT_S)
{
	struct region r, data;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	to_gpu(_metadata, self, &r);
	nic_write(_metadata, self, &data, &r, 0, r.buf.len / 2, AFTER);
	gpu_close(&self->gpu);
	nic_read(_metadata, self, &data, &r, 0, r.buf.len / 2, AFTER);
	nic_read(_metadata, self, &data, &r, r.buf.len / 2, r.buf.len / 2,
		 BEFORE);
	EXPECT_EQ(self->peer ? (long)PAGES : 0,
		  p2p_device_private(r.buf.p, r.buf.len));
	nic_write(_metadata, self, &data, &r, 0, r.buf.len, AFTER + 1);
	p2p_buf_cpu_read(_metadata, &r.buf, AFTER + 1);
	guards(_metadata, &r);
	EXPECT_EQ(0, p2p_device_private(r.buf.p, r.buf.len));
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

/* Memory that moves while the device writes and reads it */

struct mover {
	pthread_t thread;
	struct region *r;
	struct gpu *gpu;
	bool stop;
	unsigned int done;	/* rounds of the device */
	long moved;		/* pages that were seen in the GPU */
	int ret;
};

static unsigned int rounds(void)
{
	const char *text = getenv("P2P_VERBS_ROUNDS");

	return text && *text ? strtoul(text, NULL, 0) : 10;
}

/*
 * To the GPU, and home as the CPU touches it at times. As long as no round gets
 * done, moves become rarer: page faults need the time.
 */
static void *mover_run(void *arg)
{
	unsigned int i, done, seen = 0, pause = 1;
	struct mover *m = arg;
	long seen_there;
	size_t pos;

	for (i = 0; !__atomic_load_n(&m->stop, __ATOMIC_RELAXED); i++) {
		m->ret = gpu_move(m->gpu, m->r->buf.p, m->r->buf.len);
		if (m->ret)
			break;
		seen_there = gpu_resident(m->gpu, m->r->buf.p, m->r->buf.len);
		if (seen_there < 0) {
			m->ret = seen_there;
			break;
		}
		m->moved += seen_there;
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

static int transfer_moving(SELF *self, enum ibv_wr_opcode op,
			   struct region *data, struct region *r)
{
	return verbs_do_moving(&self->v, &self->link, op, at(data, 0), at(r, 0),
			       r->buf.len, NULL);
}

TEST_F_TIMEOUT(verbs_gpu, moves, TIMEOUT_S)
{
	struct region r, data;
	struct mover m = { .r = &r, .gpu = &self->gpu };
	unsigned int i, count = rounds();
	int status;

	region_init(_metadata, self, &r, PAGES, BEFORE, VERBS_ODP);
	data_init(_metadata, self, &data, PAGES);
	to_gpu(_metadata, self, &r);
	ASSERT_EQ(0, pthread_create(&m.thread, NULL, mover_run, &m));
	for (i = 0; i < count && !_metadata->exit_code; i++) {
		p2p_fill(data.buf.p, AFTER + i, 0, data.buf.len);
		status = transfer_moving(self, IBV_WR_RDMA_WRITE, &data, &r);
		EXPECT_EQ(IBV_WC_SUCCESS, status) {
			TH_LOG("NIC write: %s", verbs_str(status));
		}
		memset(data.buf.p, 0, data.buf.len);
		status = transfer_moving(self, IBV_WR_RDMA_READ, &data, &r);
		EXPECT_EQ(IBV_WC_SUCCESS, status) {
			TH_LOG("NIC read: %s", verbs_str(status));
		}
		p2p_expect_pattern(_metadata, "NIC read", data.buf.p,
				   AFTER + i, 0, data.buf.len);
		__atomic_store_n(&m.done, i + 1, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&m.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(m.thread, NULL));
	EXPECT_EQ(0, m.ret) {
		TH_LOG("%s", self->gpu.why);
	}
	EXPECT_LT(0, m.moved);
	if (count)
		all_home(_metadata, self, &r, AFTER + i - 1);
	region_free(_metadata, &r);
	region_free(_metadata, &data);
}

TEST_HARNESS_MAIN
