/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_rdma.h - what each test of the RDMA core starts from
 *
 * FIXTURE(odp): GPU 0 with all of its VRAM in the window, RDMA device 0, policy
 * "auto", and the path between them, as FIXTURE(p2p) has with the test NIC. The
 * two drivers bind the same device, so that one of them has to be loaded.
 *
 * For the guest's time, see p2p_harness.h.
 */
#ifndef P2P_RDMA_H
#define P2P_RDMA_H

#include "p2p_harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>

#include <linux/p2ptest_rdma.h>

#define RDMA_DRIVER	"p2ptest_rdma"

#define MR_WRITE	P2PTEST_RDMA_MR_WRITE
#define MR_ODP		P2PTEST_RDMA_MR_ODP
#define MR_ODP_WRITE	(MR_ODP | MR_WRITE)

/* A page as it is after a write by DMA */
#define PAGE_ALL	(P2PTEST_RDMA_PAGE_VALID | P2PTEST_RDMA_PAGE_MAPPED | \
			 P2PTEST_RDMA_PAGE_DEVICE | P2PTEST_RDMA_PAGE_WRITABLE)

FIXTURE(odp)
{
	struct p2p_gpu gpu;
	int fd;
	struct p2ptest_gpu_info info;	/* when the test began */
	enum p2p_expect path;
	bool peer;			/* the GPU's pages are reached there */
};

#define RDMA_SELF FIXTURE_DATA(odp)

static inline int rdma_ioctl(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg) < 0 ? -errno : 0;
}

static inline int rdma_reg(int fd, const void *addr, size_t len, __u32 flags,
			   __u32 *handle)
{
	struct p2ptest_rdma_reg arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.flags = flags,
	};
	int ret = rdma_ioctl(fd, P2PTEST_RDMA_REG, &arg);

	*handle = arg.handle;
	return ret;
}

static inline int rdma_dereg(int fd, __u32 handle)
{
	struct p2ptest_rdma_dereg arg = { .handle = handle };

	return rdma_ioctl(fd, P2PTEST_RDMA_DEREG, &arg);
}

/* @flags: what is added */
static inline int rdma_rereg(int fd, __u32 handle, __u32 flags)
{
	struct p2ptest_rdma_rereg arg = { .handle = handle, .flags = flags };

	return rdma_ioctl(fd, P2PTEST_RDMA_REREG, &arg);
}

/* @out, if not NULL, receives what the driver reports, also after an error. */
static inline int rdma_xfer(int fd, __u32 handle, const void *addr, void *buf,
			    size_t len, bool write,
			    struct p2ptest_rdma_xfer *out)
{
	struct p2ptest_rdma_xfer arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.buf = (uintptr_t)buf,
		.handle = handle,
		.flags = write ? P2PTEST_RDMA_XFER_WRITE : 0,
	};
	int ret = rdma_ioctl(fd, P2PTEST_RDMA_XFER, &arg);

	if (out)
		*out = arg;
	return !ret && arg.done != len ? -EIO : ret;
}

static inline int rdma_fault(int fd, __u32 handle, const void *addr, size_t len,
			     __u32 flags)
{
	struct p2ptest_rdma_fault arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.handle = handle,
		.flags = flags,
	};

	return rdma_ioctl(fd, P2PTEST_RDMA_FAULT, &arg);
}

static inline int rdma_query(int fd, __u32 handle, const void *addr, size_t len,
			     struct p2ptest_rdma_page *pages, __u64 *mapped)
{
	struct p2ptest_rdma_query arg = {
		.addr = (uintptr_t)addr,
		.len = len,
		.pages = (uintptr_t)pages,
		.handle = handle,
	};
	int ret = rdma_ioctl(fd, P2PTEST_RDMA_QUERY, &arg);

	if (mapped)
		*mapped = arg.mapped;
	return ret;
}

/* Memory that holds pages 0.. of @seed, and a region of it */
static inline void rdma_buf_init(struct __test_metadata *_metadata,
				 RDMA_SELF *self, struct p2p_buf *buf,
				 size_t pages, __u64 seed, __u32 flags)
{
	p2p_buf_alloc(_metadata, buf, pages, seed);
	ASSERT_EQ(0, rdma_reg(self->fd, buf->p, buf->len, flags, &buf->handle));
}

static inline void rdma_buf_free(struct __test_metadata *_metadata,
				 RDMA_SELF *self, struct p2p_buf *buf)
{
	EXPECT_EQ(0, rdma_dereg(self->fd, buf->handle));
	EXPECT_EQ(0, munmap(buf->p, buf->len));
}

static inline void rdma_buf_to_vram(struct __test_metadata *_metadata,
				    RDMA_SELF *self, struct p2p_buf *buf)
{
	ASSERT_EQ((long)buf->pages,
		  p2p_gpu_to_vram(&self->gpu, buf->p, buf->len));
}

/* Write pages 0.. of @seed to the buffer by DMA */
static inline void rdma_buf_write(struct __test_metadata *_metadata,
				  RDMA_SELF *self, struct p2p_buf *buf,
				  __u64 seed)
{
	void *data = malloc(buf->len);

	ASSERT_NE(NULL, data);
	p2p_fill(data, seed, 0, buf->len);
	EXPECT_EQ(0, rdma_xfer(self->fd, buf->handle, buf->p, data, buf->len,
			       true, NULL));
	free(data);
}

/* Read the buffer by DMA: it has to hold pages 0.. of @seed */
static inline void rdma_buf_read(struct __test_metadata *_metadata,
				 RDMA_SELF *self, struct p2p_buf *buf,
				 __u64 seed)
{
	void *data = calloc(1, buf->len);

	ASSERT_NE(NULL, data);
	EXPECT_EQ(0, rdma_xfer(self->fd, buf->handle, buf->p, data, buf->len,
			       false, NULL));
	p2p_expect_pattern(_metadata, "DMA read", data, seed, 0, buf->len);
	free(data);
}

/* Where the device finds a page that is in VRAM when it faults */
static inline int rdma_vram_kind(const RDMA_SELF *self)
{
	return self->peer ? p2p_peer_kind(self->path) : P2PTEST_PAGE_HOST;
}

/* Page @i of the buffer; silent, so that it can be used in a loop */
static inline struct p2ptest_rdma_page
rdma_page(struct __test_metadata *_metadata, RDMA_SELF *self,
	  const struct p2p_buf *buf, size_t i)
{
	struct p2ptest_rdma_page page = { .kind = 0xff, .flags = 0xff };

	EXPECT_EQ(0, rdma_query(self->fd, buf->handle, buf->p + i * P2P_PAGE,
				P2P_PAGE, &page, NULL));
	EXPECT_EQ(0, page.pad);
	return page;
}

static inline __u64 rdma_mapped(struct __test_metadata *_metadata,
				RDMA_SELF *self, const struct p2p_buf *buf)
{
	struct p2ptest_rdma_page page;
	__u64 mapped = ~0ULL;

	EXPECT_EQ(0, rdma_query(self->fd, buf->handle, buf->p, 1, &page,
				&mapped));
	return mapped;
}

/* All pages have this kind and these flags, and the core counts them */
static inline void rdma_expect_pages(struct __test_metadata *_metadata,
				     RDMA_SELF *self, const struct p2p_buf *buf,
				     int kind, int flags)
{
	struct p2ptest_rdma_page page;
	size_t i;

	for (i = 0; i < buf->pages; i++) {
		page = rdma_page(_metadata, self, buf, i);
		EXPECT_EQ(kind, page.kind) {
			TH_LOG("page %zu", i);
		}
		EXPECT_EQ(flags, page.flags) {
			TH_LOG("page %zu", i);
		}
	}
	EXPECT_EQ(flags & P2PTEST_RDMA_PAGE_MAPPED ? buf->pages : 0,
		  rdma_mapped(_metadata, self, buf));
}

/* P2PTEST_EXPECT is not set: ask the system itself */
static inline enum p2p_expect rdma_probe(struct __test_metadata *_metadata,
					 RDMA_SELF *self)
{
	struct p2ptest_rdma_page page;
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, 1, 1, MR_ODP);
	rdma_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, rdma_fault(self->fd, buf.handle, buf.p, buf.len, 0));
	page = rdma_page(_metadata, self, &buf, 0);
	rdma_buf_free(_metadata, self, &buf);
	if (page.kind == P2PTEST_PAGE_BUS_ADDR)
		return P2P_EXPECT_BUS_ADDR;
	if (page.kind == P2PTEST_PAGE_HOST_BRIDGE)
		return P2P_EXPECT_HOST_BRIDGE;
	return P2P_EXPECT_TOPOLOGY;
}

FIXTURE_SETUP(odp)
{
	int path = p2p_expect(0);

	self->gpu.fd = -1;
	self->fd = -1;
	if (!p2p_start(_metadata))
		return;
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	if (!p2p_gpu_count())
		SKIP(return, "no test GPU: no /dev/" P2P_GPU_DRIVER "<N>");
	self->fd = p2p_dev_open(RDMA_DRIVER, 0);
	if (self->fd == -ENOENT)
		SKIP(return, "no test RDMA device: no /dev/" RDMA_DRIVER "<N>");
	ASSERT_LE(0, self->fd);
	p2p_gpu_setup(_metadata, &self->gpu, &self->info);
	/* Without PCI_P2PDMA there is no policy */
	p2p_policy_set("auto");
	self->path = path;
	if (path == P2P_EXPECT_UNKNOWN)
		self->path = rdma_probe(_metadata, self);
	self->peer = p2p_peer_path(self->path);
}

/* In the parent: the memory of the process under test has gone by now */
FIXTURE_TEARDOWN_PARENT(odp)
{
	p2p_gpu_teardown(_metadata, &self->info);
}

/*
 * Something that is done while the lock of the pages is held elsewhere. These
 * come one after the other, HOLD_MS / 4 apart, so that they are in this order in
 * the queue of the lock.
 */
#define HOLD_MS	800

struct queued {
	pthread_t thread;
	RDMA_SELF *rdma;
	struct p2p_buf *buf;
	long ret;
};

static inline void *queued_hold(void *arg)
{
	struct queued *q = arg;
	struct p2ptest_rdma_page page;
	struct p2ptest_rdma_query query = {
		.addr = (uintptr_t)q->buf->p,
		.len = P2P_PAGE,
		.pages = (uintptr_t)&page,
		.handle = q->buf->handle,
		.hold = HOLD_MS,
	};

	q->ret = rdma_ioctl(q->rdma->fd, P2PTEST_RDMA_QUERY, &query);
	return NULL;
}

static inline void *queued_fault(void *arg)
{
	struct queued *q = arg;

	q->ret = rdma_fault(q->rdma->fd, q->buf->handle, q->buf->p, q->buf->len,
			    P2PTEST_RDMA_FAULT_WRITE);
	return NULL;
}

static inline void queued_start(struct __test_metadata *_metadata,
				struct queued *q, void *(*run)(void *arg))
{
	ASSERT_EQ(0, pthread_create(&q->thread, NULL, run, q));
	p2p_sleep_ms(HOLD_MS / 4);
}

static inline void queued_end(struct __test_metadata *_metadata,
			      struct queued *q)
{
	ASSERT_EQ(0, pthread_join(q->thread, NULL));
	EXPECT_EQ(0, q->ret);
}

#endif /* P2P_RDMA_H */
