/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_fixture.h - what each test starts from, and what it must leave behind
 *
 * FIXTURE(p2p): GPU 0 with all of its VRAM in the window, NIC 0, policy "auto",
 * and the path between them. After each test everything is put back, and no page
 * of VRAM may be in use.
 *
 * The path is what P2PTEST_EXPECT says (see p2ptest.h). If nobody says, one
 * page is tried, and all further pages have to fare as it did.
 */
#ifndef P2P_FIXTURE_H
#define P2P_FIXTURE_H

#include "p2p_harness.h"

FIXTURE(p2p)
{
	struct p2p_gpu gpu;
	struct p2p_nic nic;
	struct p2ptest_gpu_info info;	/* when the test began */
	enum p2p_expect path;
	bool has_p2p;			/* the kernel counts and has a policy */
};

#define P2P_SELF FIXTURE_DATA(p2p)

/* Memory that holds pages 0.. of @seed, and a region of it that may be written */
static inline void p2p_buf_init(struct __test_metadata *_metadata,
				P2P_SELF *self, struct p2p_buf *buf,
				size_t pages, __u64 seed)
{
	p2p_buf_alloc(_metadata, buf, pages, seed);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf->p, buf->len,
				 P2PTEST_NIC_MR_WRITE, &buf->handle));
}

/* The same, of one huge page; false if there is none, and the test is skipped */
static inline bool p2p_buf_init_huge(struct __test_metadata *_metadata,
				     P2P_SELF *self, struct p2p_buf *buf,
				     __u64 seed)
{
	if (!p2p_buf_alloc_huge(_metadata, buf, seed))
		return false;
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf->p, buf->len,
				 P2PTEST_NIC_MR_WRITE, &buf->handle));
	return true;
}

static inline void p2p_buf_to_vram(struct __test_metadata *_metadata,
				   P2P_SELF *self, struct p2p_buf *buf)
{
	ASSERT_EQ((long)buf->pages,
		  p2p_gpu_to_vram(&self->gpu, buf->p, buf->len));
	ASSERT_EQ((long)buf->pages,
		  p2p_gpu_resident(&self->gpu, buf->p, buf->len));
}

static inline void p2p_buf_free(struct __test_metadata *_metadata,
				P2P_SELF *self, struct p2p_buf *buf)
{
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf->handle));
	EXPECT_EQ(0, munmap(buf->p, buf->len));
}

/* Write pages 0.. of @seed to the buffer by DMA */
static inline void p2p_buf_nic_write(struct __test_metadata *_metadata,
				     P2P_SELF *self, struct p2p_buf *buf,
				     __u64 seed)
{
	void *data = malloc(buf->len);

	ASSERT_NE(NULL, data);
	p2p_fill(data, seed, 0, buf->len);
	EXPECT_EQ(0, p2p_nic_write(&self->nic, buf->handle, buf->p, data,
				   buf->len, NULL));
	free(data);
}

/* Read the buffer by DMA: it has to hold pages 0.. of @seed */
static inline void p2p_buf_nic_read(struct __test_metadata *_metadata,
				    P2P_SELF *self, struct p2p_buf *buf,
				    __u64 seed)
{
	void *data = calloc(1, buf->len);

	ASSERT_NE(NULL, data);
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf->handle, buf->p, data,
				  buf->len, NULL));
	p2p_expect_pattern(_metadata, "NIC read", data, seed, 0, buf->len);
	free(data);
}

/* The same by the GPU; @pages of them have to be reached in VRAM */
static inline void p2p_buf_gpu_read(struct __test_metadata *_metadata,
				    P2P_SELF *self, struct p2p_buf *buf,
				    __u64 seed, long pages)
{
	void *data = calloc(1, buf->len);

	ASSERT_NE(NULL, data);
	EXPECT_EQ(pages, p2p_gpu_read(&self->gpu, buf->p, data, buf->len));
	p2p_expect_pattern(_metadata, "GPU read", data, seed, 0, buf->len);
	free(data);
}

/*
 * After the NIC reached all @buf->pages pages, of which @vram were in VRAM and
 * each of those met @reason: is everything as it has to be, for the NIC, the
 * GPU, and in the number of pages that moved since @from?
 */
static inline void p2p_buf_reached(struct __test_metadata *_metadata,
				   P2P_SELF *self, struct p2p_buf *buf,
				   size_t vram, int reason,
				   const struct p2ptest_gpu_info *from)
{
	bool peer = reason == P2PTEST_REASON_BUS_ADDR ||
		    reason == P2PTEST_REASON_HOST_BRIDGE;
	struct p2p_view view;

	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf->handle, buf->p, buf->len,
				  &view));
	EXPECT_EQ(peer ? vram : 0, view.peer);
	if (peer)
		EXPECT_EQ(vram, view.kind[p2p_peer_kind(self->path)]);
	EXPECT_EQ(buf->pages - view.peer, view.kind[P2PTEST_PAGE_HOST]);
	EXPECT_EQ(vram, view.reason[reason]) {
		TH_LOG("expected %zu pages with reason %s", vram,
		       p2p_reason_names[reason]);
	}
	EXPECT_EQ(buf->pages - vram, view.reason[P2PTEST_REASON_NONE]);
	EXPECT_EQ(peer ? 0 : vram, p2p_moves(_metadata, &self->gpu, from));
	EXPECT_EQ(peer ? (long)vram : 0,
		  p2p_gpu_resident(&self->gpu, buf->p, buf->len));
}

/*
 * What VRAM holds at the places of @locs, seen through the BAR: pages 0.. of
 * @seed
 */
static inline void p2p_vram_pattern(struct __test_metadata *_metadata,
				    P2P_SELF *self, const __u64 *locs,
				    size_t pages, __u64 seed)
{
	const unsigned char *vram;
	size_t i, len;

	vram = p2p_vram_map(self->gpu.id, &len);
	ASSERT_NE(NULL, vram)
		TH_LOG("no BAR in sysfs: lockdown, or CONFIG_IO_STRICT_DEVMEM?");
	for (i = 0; i < pages; i++) {
		ASSERT_TRUE(p2p_loc_is_vram(locs[i]));
		ASSERT_LE(p2p_loc_offset(locs[i]), len - P2P_PAGE);
		p2p_expect_pattern(_metadata, "VRAM",
				   vram + p2p_loc_offset(locs[i]), seed,
				   i * P2P_PAGE, P2P_PAGE);
	}
	munmap((void *)vram, len);
}

/* P2PTEST_EXPECT is not set: ask the system itself */
static inline enum p2p_expect p2p_probe(struct __test_metadata *_metadata,
					P2P_SELF *self)
{
	struct p2p_view view;
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, 1, 1);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_read(_metadata, self, &buf, 1);
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	p2p_buf_free(_metadata, self, &buf);
	if (view.kind[P2PTEST_PAGE_BUS_ADDR])
		return P2P_EXPECT_BUS_ADDR;
	if (view.kind[P2PTEST_PAGE_HOST_BRIDGE])
		return P2P_EXPECT_HOST_BRIDGE;
	ASSERT_EQ(1U, view.reason[P2PTEST_REASON_TOPOLOGY]);
	return P2P_EXPECT_TOPOLOGY;
}

FIXTURE_SETUP(p2p)
{
	int path = p2p_expect(0);

	self->gpu.fd = -1;
	self->nic.fd = -1;
	if (!p2p_start(_metadata))
		return;
	ASSERT_LE(0, path)
		TH_LOG("P2PTEST_EXPECT is not understood");
	if (!p2p_gpu_count())
		SKIP(return, "no test GPU: no /dev/" P2P_GPU_DRIVER "<N>");
	if (!p2p_nic_count())
		SKIP(return, "no test NIC: no /dev/" P2P_NIC_DRIVER "<N>");
	p2p_gpu_setup(_metadata, &self->gpu, &self->info);
	ASSERT_EQ(0, p2p_nic_open(&self->nic, 0));
	self->has_p2p = !p2p_policy_set("auto");
	self->path = path;
	if (path == P2P_EXPECT_UNKNOWN)
		self->path = self->has_p2p ? p2p_probe(_metadata, self) :
					     P2P_EXPECT_NONE;
	/* Only a kernel without PCI_P2PDMA has no policy */
	ASSERT_EQ(self->has_p2p, self->path != P2P_EXPECT_NONE);
}

/*
 * In the parent: the memory of the process under test has gone by now, and it
 * runs as well if that process died.
 */
FIXTURE_TEARDOWN_PARENT(p2p)
{
	p2p_gpu_teardown(_metadata, &self->info);
}

static inline void *p2p_nic_transfer(void *arg)
{
	struct p2p_transfer *t = arg;
	P2P_SELF *self = t->self;

	if (t->write)
		t->ret = p2p_nic_write(&self->nic, t->buf->handle, t->buf->p,
				       t->data, t->buf->len, &t->xfer);
	else
		t->ret = p2p_nic_read(&self->nic, t->buf->handle, t->buf->p,
				      t->data, t->buf->len, &t->xfer);
	return NULL;
}

#endif /* P2P_FIXTURE_H */
