/* SPDX-License-Identifier: GPL-2.0 */
/*
 * verbs_fixture.h - what each test of a verbs device starts from, and its steps
 *
 * FIXTURE(verbs): GPU 0 with all of its VRAM in the window, an RDMA device with
 * two queue pairs that talk to each other, policy "auto", and the path between
 * the two devices as FIXTURE(p2p) has it. Variants are the two kinds of region
 * that page on demand. After each test no page of VRAM may be in use; what a
 * test has of verbs goes with its process.
 *
 * P2PTEST_GPU=none, in programs that define VERBS_GPU_OPTIONAL as true: the tests
 * use host memory alone, and those that need a GPU are skipped. A kernel without
 * peer-to-peer DMA to device private memory must give the same results.
 */
#ifndef VERBS_FIXTURE_H
#define VERBS_FIXTURE_H

#include "../p2p_harness.h"
#include "verbs.h"

#include <linux/udmabuf.h>
#include <sys/ioctl.h>

#ifndef VERBS_GPU_OPTIONAL
#define VERBS_GPU_OPTIONAL false
#endif

#define PAGES	16UL

FIXTURE(verbs)
{
	struct verbs v;
	struct verbs_link link;
	struct p2p_gpu gpu;
	struct p2ptest_gpu_info info;	/* when the test began */
	enum p2p_expect path;
	bool no_gpu;
	bool implicit;			/* kind of region */
	bool peer;			/* the GPU's pages are reached there */
	bool has_p2p;			/* the kernel counts and has a policy */
};

#define VERBS_SELF FIXTURE_DATA(verbs)

FIXTURE_VARIANT(verbs)
{
	bool implicit;
};

FIXTURE_VARIANT_ADD(verbs, explicit) { .implicit = false };
FIXTURE_VARIANT_ADD(verbs, implicit) { .implicit = true };

/* Memory under test, with a guard page on each side that nobody has to touch */
struct verbs_buf {
	unsigned char *p;
	size_t len;
	size_t pages;
	unsigned char *want;	/* what is in it, guards included */
	unsigned char *room;	/* all of the mapping */
	struct ibv_mr *mr;
};

static inline struct verbs_end verbs_at(const struct verbs_buf *buf, size_t pos)
{
	return (struct verbs_end){ .p = buf->p + pos, .mr = buf->mr };
}

/* A region of the buffer, and of everything else if it is implicit */
static inline struct ibv_mr *verbs_reg(VERBS_SELF *self,
				       const struct verbs_buf *buf, int access)
{
	if (self->implicit && (access & IBV_ACCESS_ON_DEMAND))
		return ibv_reg_mr(self->v.pd, NULL, SIZE_MAX, access);
	return ibv_reg_mr(self->v.pd, buf->p, buf->len, access);
}

static inline void verbs_buf_map(struct __test_metadata *_metadata,
				 struct verbs_buf *buf, int advice)
{
	const size_t len = buf->len + 2 * P2P_PAGE;
	unsigned char *first = buf->p - P2P_PAGE;

	ASSERT_EQ(first, mmap(first, len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			      MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	/* The guards are not huge, so that the buffer is a mapping of its own */
	madvise(first, len, MADV_NOHUGEPAGE);
	madvise(buf->p, buf->len, advice);
	memcpy(first, buf->want, len);
}

/*
 * Memory that holds pages 0.. of @seed, registered with @access unless that is
 * 0; as huge pages if it has that size and there are any
 */
static inline void verbs_buf_init(struct __test_metadata *_metadata,
				  VERBS_SELF *self, struct verbs_buf *buf,
				  size_t pages, __u64 seed, int access)
{
	bool huge = pages * P2P_PAGE == P2P_HUGE;
	uintptr_t first;

	memset(buf, 0, sizeof(*buf));
	buf->pages = pages;
	buf->len = pages * P2P_PAGE;
	buf->room = mmap(NULL, buf->len + 2 * P2P_HUGE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf->room);
	first = (uintptr_t)buf->room + P2P_PAGE + P2P_HUGE - 1;
	buf->p = (unsigned char *)(first & ~(P2P_HUGE - 1));
	buf->want = malloc(buf->len + 2 * P2P_PAGE);
	ASSERT_NE(NULL, buf->want);
	p2p_fill(buf->want, seed + 50, 0, P2P_PAGE);
	p2p_fill(buf->want + P2P_PAGE, seed, 0, buf->len);
	p2p_fill(buf->want + P2P_PAGE + buf->len, seed + 51, 0, P2P_PAGE);
	verbs_buf_map(_metadata, buf, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	if (!access)
		return;
	buf->mr = verbs_reg(self, buf, access);
	ASSERT_NE(NULL, buf->mr)
		TH_LOG("no memory region: %s", strerror(errno));
}

static inline void verbs_buf_free(struct __test_metadata *_metadata,
				  struct verbs_buf *buf)
{
	if (buf->mr)
		EXPECT_EQ(0, ibv_dereg_mr(buf->mr));
	EXPECT_EQ(0, munmap(buf->room, buf->len + 2 * P2P_HUGE));
	free(buf->want);
}

/* The CPU writes pages 0.. of @seed */
static inline void verbs_buf_fill(struct verbs_buf *buf, __u64 seed)
{
	p2p_fill(buf->want + P2P_PAGE, seed, 0, buf->len);
	memcpy(buf->p, buf->want + P2P_PAGE, buf->len);
}

/* Pages of VRAM that hold this part of the buffer */
static inline long verbs_buf_vram(VERBS_SELF *self, const struct verbs_buf *buf,
				  size_t pos, size_t len)
{
	size_t end = (pos + len + P2P_PAGE - 1) & ~(P2P_PAGE - 1);

	if (self->no_gpu)
		return 0;
	pos &= ~(P2P_PAGE - 1);
	return p2p_gpu_resident(&self->gpu, buf->p + pos, end - pos);
}

/* The guards, too: that finds who writes beyond the buffer in VRAM */
static inline void verbs_buf_to_vram(struct __test_metadata *_metadata,
				     VERBS_SELF *self, struct verbs_buf *buf)
{
	if (self->no_gpu)
		return;
	/* Huge pages move as such only if they are asked for alone */
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, buf->p, buf->len));
	ASSERT_LE(0, p2p_gpu_to_vram(&self->gpu, buf->p - P2P_PAGE,
				     buf->len + 2 * P2P_PAGE));
	ASSERT_EQ((long)buf->pages, verbs_buf_vram(self, buf, 0, buf->len));
}

static inline void verbs_same(struct __test_metadata *_metadata,
			      const char *who, const unsigned char *want,
			      const unsigned char *seen, size_t len)
{
	size_t i = memcmp(want, seen, len) ? 0 : len;

	while (i < len && want[i] == seen[i])
		i++;
	EXPECT_EQ(len, i) {
		TH_LOG("%s: page %zu, byte %zu is %#x and not %#x", who,
		       i / P2P_PAGE, i % P2P_PAGE, seen[i], want[i]);
	}
}

/* Buffer and guards hold what they should: for the GPU, then for the CPU */
static inline void verbs_buf_check(struct __test_metadata *_metadata,
				   VERBS_SELF *self, struct verbs_buf *buf)
{
	long vram = verbs_buf_vram(self, buf, 0, buf->len);
	unsigned char *seen;

	if (!self->no_gpu) {
		seen = calloc(1, buf->len);
		ASSERT_NE(NULL, seen);
		EXPECT_EQ(vram,
			  p2p_gpu_read(&self->gpu, buf->p, seen, buf->len));
		verbs_same(_metadata, "GPU", buf->want + P2P_PAGE, seen,
			   buf->len);
		free(seen);
	}
	/* Page 0 is a guard here */
	verbs_same(_metadata, "CPU", buf->want, buf->p - P2P_PAGE,
		   buf->len + 2 * P2P_PAGE);
}

static inline void verbs_expect_success(struct __test_metadata *_metadata,
					int status)
{
	EXPECT_EQ(IBV_WC_SUCCESS, status) {
		TH_LOG("%s", verbs_str(status));
	}
}

static inline void verbs_relink(struct __test_metadata *_metadata,
				VERBS_SELF *self)
{
	ASSERT_EQ(0, verbs_unlink(&self->link));
	ASSERT_EQ(0, verbs_link(&self->v, &self->link));
}

/*
 * It ended with @status or, because devices differ in what they tell, @other.
 * Whoever asked cannot ask again; after this, everything can go on.
 */
static inline void verbs_expect_error(struct __test_metadata *_metadata,
				      VERBS_SELF *self, int seen, int status,
				      int other)
{
	static unsigned char data[8];
	struct ibv_mr *mr = ibv_reg_mr(self->v.pd, data, sizeof(data),
				       VERBS_REMOTE);
	struct verbs_end end = { .p = data, .mr = mr };

	EXPECT_TRUE(seen == status || seen == other) {
		TH_LOG("%s, and not %s", verbs_str(seen), verbs_str(status));
	}
	EXPECT_EQ(IBV_QPS_ERR, verbs_qp_state(self->link.qp[ASKS]));
	ASSERT_NE(NULL, mr);
	EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, verbs_do(&self->link, IBV_WR_RDMA_WRITE,
						end, end, sizeof(data)));
	verbs_relink(_metadata, self);
	EXPECT_EQ(0, ibv_dereg_mr(mr));
}

/* A transfer of part of a buffer to part of another one, which must succeed */
static inline void verbs_copy(struct __test_metadata *_metadata,
			      VERBS_SELF *self, enum ibv_wr_opcode op,
			      struct verbs_buf *from, size_t from_pos,
			      struct verbs_buf *to, size_t to_pos, size_t len)
{
	struct verbs_end src = verbs_at(from, from_pos);
	struct verbs_end dst = verbs_at(to, to_pos);
	bool read = op == IBV_WR_RDMA_READ;

	verbs_expect_success(_metadata, verbs_do(&self->link, op,
						 read ? dst : src,
						 read ? src : dst, len));
	memcpy(to->want + P2P_PAGE + to_pos, from->want + P2P_PAGE + from_pos,
	       len);
}

/* @len bytes of shared memory as a dma-buf, or -1 */
static inline int verbs_dmabuf(struct __test_metadata *_metadata,
			       unsigned char **p, size_t len)
{
	int memfd = memfd_create("dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int dev = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	struct udmabuf_create create = {
		.memfd = memfd,
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.size = len,
	};
	int fd;

	ASSERT_LE(0, memfd);
	ASSERT_EQ(0, ftruncate(memfd, len));
	ASSERT_EQ(0, fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	*p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	ASSERT_NE(MAP_FAILED, (void *)*p);
	fd = dev < 0 ? -1 : ioctl(dev, UDMABUF_CREATE, &create);
	if (dev >= 0)
		close(dev);
	close(memfd);
	return fd;
}

/* Where things were before a transfer */
struct verbs_mark {
	struct p2ptest_gpu_info info;
	struct p2p_stats stats;
};

static inline void verbs_mark(struct __test_metadata *_metadata,
			      VERBS_SELF *self, struct verbs_mark *mark)
{
	if (self->no_gpu)
		return;
	mark->info = p2p_info(_metadata, &self->gpu);
	if (self->has_p2p)
		ASSERT_EQ(0, p2p_stats_read(&mark->stats));
}

/*
 * The device met @vram pages of VRAM since then: it reached them there, and the
 * kernel counted them, or all of them came to host memory. A page may count more
 * than once, because devices repeat page faults.
 */
static inline void verbs_expect_met(struct __test_metadata *_metadata,
				    VERBS_SELF *self, struct verbs_mark *mark,
				    __u64 vram)
{
	int reason = p2p_path_reason(self->path);
	__u64 moved;
	int i;

	if (self->no_gpu)
		return;
	moved = p2p_moves(_metadata, &self->gpu, &mark->info);
	EXPECT_TRUE(self->peer ? !moved : moved >= vram) {
		TH_LOG("%llu pages moved", moved);
	}
	if (!self->has_p2p)
		return;
	ASSERT_EQ(0, p2p_stats_since(&mark->stats));
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++) {
		bool counts = i == reason && !self->v.software && vram;
		__u64 seen = mark->stats.pages[i];
		__u64 least = 0;

		/* A huge page comes home as soon as one page is met */
		if (counts)
			least = self->peer ? vram : 1;
		EXPECT_TRUE(counts ? seen >= least : !seen) {
			TH_LOG("counted: %s, %llu times, and not %llu",
			       p2p_reason_names[i], seen, least);
		}
	}
}

/* P2PTEST_EXPECT is not set: ask the system itself */
static inline enum p2p_expect verbs_probe(struct __test_metadata *_metadata,
					  VERBS_SELF *self)
{
	struct verbs_buf buf, data;
	struct p2p_stats stats;

	verbs_buf_init(_metadata, self, &buf, 1, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, 1, AFTER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_stats_read(&stats));
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	ASSERT_EQ(0, p2p_stats_since(&stats));
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
	if (stats.pages[P2PTEST_REASON_BUS_ADDR])
		return P2P_EXPECT_BUS_ADDR;
	if (stats.pages[P2PTEST_REASON_HOST_BRIDGE])
		return P2P_EXPECT_HOST_BRIDGE;
	return P2P_EXPECT_TOPOLOGY;
}

FIXTURE_SETUP(verbs)
{
	const char *why, *name = getenv("P2PTEST_GPU");
	int path = p2p_expect(0);

	self->gpu.fd = -1;
	self->no_gpu = VERBS_GPU_OPTIONAL && name && !strcmp(name, "none");
	self->implicit = variant && variant->implicit;
	if (!p2p_start(_metadata))
		return;
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	if (!self->no_gpu && !p2p_gpu_count())
		SKIP(return, "no test GPU: no /dev/" P2P_GPU_DRIVER "<N>");
	why = verbs_open(&self->v);
	if (why)
		SKIP(return, "%s", why);
	if (self->implicit && !self->v.implicit)
		SKIP(return, "the RDMA device has no implicit regions");
	ASSERT_EQ(0, verbs_link(&self->v, &self->link));
	if (self->no_gpu)
		return;
	p2p_gpu_setup(_metadata, &self->gpu, &self->info);
	self->has_p2p = !p2p_policy_set("auto");
	self->path = path;
	if (path == P2P_EXPECT_UNKNOWN && !self->v.software)
		self->path = self->has_p2p ? verbs_probe(_metadata, self) :
					     P2P_EXPECT_NONE;
	self->peer = p2p_peer_path(self->path) && !self->v.software;
}

/* In the parent: memory and regions of the process under test have gone by now */
FIXTURE_TEARDOWN_PARENT(verbs)
{
	if (self->no_gpu)
		return;
	p2p_gpu_teardown(_metadata, &self->info);
}

/* For a process of its own, with its own memory, regions and queue pairs */
static inline void verbs_own(struct __test_metadata *_metadata,
			     VERBS_SELF *self, VERBS_SELF *own)
{
	/* The fixture's data is shared with the parent */
	*own = *self;
	ASSERT_EQ(NULL, verbs_open(&own->v));
	ASSERT_EQ(0, verbs_link(&own->v, &own->link));
	ASSERT_EQ(0, p2p_gpu_open(&own->gpu, 0));
}

/* Open the device, within @wait_ms, use it as before, and close it */
static inline void verbs_works(struct __test_metadata *_metadata,
			       VERBS_SELF *self, unsigned int wait_ms)
{
	struct ibv_device_attr attr;
	struct verbs_buf buf, data;
	VERBS_SELF own = *self;
	const char *why;
	unsigned int ms;

	for (ms = 0; (why = verbs_open(&own.v)) && ms < wait_ms; ms += 100)
		p2p_sleep_ms(100);
	ASSERT_EQ(NULL, why)
		TH_LOG("%s", why);
	ASSERT_EQ(0, verbs_link(&own.v, &own.link));
	ASSERT_EQ(0, p2p_gpu_open(&own.gpu, 0));
	EXPECT_EQ(0, ibv_query_device(own.v.ctx, &attr));
	verbs_buf_init(_metadata, &own, &buf, PAGES, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, &own, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, &own, &buf);
	verbs_copy(_metadata, &own, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	verbs_buf_check(_metadata, &own, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
	p2p_gpu_close(&own.gpu);
	EXPECT_EQ(0, verbs_unlink(&own.link));
	EXPECT_EQ(0, verbs_close(&own.v));
}

#endif /* VERBS_FIXTURE_H */
