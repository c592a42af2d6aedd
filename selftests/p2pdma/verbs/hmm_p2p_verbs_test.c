// SPDX-License-Identifier: GPL-2.0
/*
 * Test of RDMA on-demand paging over device private memory with a real verbs
 * device: what is transferred, from and to where, and what its regions allow
 *
 * A device that does DMA reaches pages in VRAM if the topology allows it. For
 * all others, and for rxe, which copies with the CPU, pages come to host memory.
 * hmm_p2p_verbs_race_test.c has what changes while transfers run.
 */
#define VERBS_GPU_OPTIONAL true
#include "verbs_fixture.h"

/* Everything, from and to everywhere */

enum place { RAM, VRAM, MIXED, HUGE };

FIXTURE(verbs_place)
{
	VERBS_SELF verbs;
};

FIXTURE_VARIANT(verbs_place)
{
	FIXTURE_VARIANT(verbs) region;
	enum place place;
};

FIXTURE_VARIANT_ADD(verbs_place, ram) { { false }, RAM };
FIXTURE_VARIANT_ADD(verbs_place, vram) { { false }, VRAM };
FIXTURE_VARIANT_ADD(verbs_place, mixed) { { false }, MIXED };
FIXTURE_VARIANT_ADD(verbs_place, huge) { { false }, HUGE };
FIXTURE_VARIANT_ADD(verbs_place, implicit_ram) { { true }, RAM };
FIXTURE_VARIANT_ADD(verbs_place, implicit_vram) { { true }, VRAM };
FIXTURE_VARIANT_ADD(verbs_place, implicit_mixed) { { true }, MIXED };
FIXTURE_VARIANT_ADD(verbs_place, implicit_huge) { { true }, HUGE };

FIXTURE_SETUP(verbs_place)
{
	verbs_setup(_metadata, &self->verbs, &variant->region);
	if (self->verbs.no_gpu && variant->place != RAM)
		SKIP(return, "no GPU");
}

FIXTURE_TEARDOWN_PARENT(verbs_place)
{
	verbs_teardown(_metadata, &self->verbs, NULL);
}

/* Parts of two buffers; only the last one needs many pages */
static const struct {
	size_t from;
	size_t to;
	size_t len;
	size_t pages;
} parts[] = {
	{ 2 * P2P_PAGE - 1, 3 * P2P_PAGE, 1, 4 },
	{ P2P_PAGE, P2P_PAGE, P2P_PAGE, 4 },
	{ P2P_PAGE + 100, P2P_PAGE - 7, 3 * P2P_PAGE + 11, 6 },
	{ P2P_PAGE, P2P_PAGE, 1UL << 20, 258 },
};

static void put(struct __test_metadata *_metadata, VERBS_SELF *self,
		struct verbs_buf *buf, enum place place)
{
	size_t i;

	if (place == MIXED) {
		for (i = 1; i < buf->pages; i += 2)
			ASSERT_EQ(1, p2p_gpu_to_vram(&self->gpu,
						     buf->p + i * P2P_PAGE,
						     P2P_PAGE));
	} else if (place != RAM) {
		verbs_buf_to_vram(_metadata, self, buf);
	}
}

/* Sides whose memory is under test; the other one is pinned */
#define FROM	1
#define TO	2

/* 8 MiB */
#define LARGE_PAGES	2048UL

static void copy_part(struct __test_metadata *_metadata, VERBS_SELF *self,
		      enum place place, enum ibv_wr_opcode op, int sides,
		      size_t part)
{
	size_t pages = place == HUGE ? P2P_HUGE / P2P_PAGE : parts[part].pages;
	size_t len = parts[part].len;
	struct verbs_buf from, to;
	struct verbs_mark mark;
	long n, vram;

	verbs_buf_init(_metadata, self, &from, pages, BEFORE,
		       sides & FROM ? VERBS_ODP : VERBS_REMOTE);
	verbs_buf_init(_metadata, self, &to, pages, OTHER,
		       sides & TO ? VERBS_ODP : VERBS_REMOTE);
	if (place == HUGE &&
	    p2p_huge_bytes(sides & FROM ? from.p : to.p) != (long)P2P_HUGE)
		SKIP(goto free, "the kernel gives no huge pages");
	if (sides & FROM)
		put(_metadata, self, &from, place);
	if (sides & TO)
		put(_metadata, self, &to, place);
	n = verbs_buf_vram(self, &from, 0, from.len) +
	    verbs_buf_vram(self, &to, 0, to.len);
	vram = verbs_buf_vram(self, &from, parts[part].from, len) +
	       verbs_buf_vram(self, &to, parts[part].to, len);

	verbs_mark(_metadata, self, &mark);
	verbs_copy(_metadata, self, op, &from, parts[part].from, &to,
		   parts[part].to, len);
	verbs_expect_met(_metadata, self, &mark, vram);
	if (self->peer) {
		EXPECT_EQ(n, verbs_buf_vram(self, &from, 0, from.len) +
				     verbs_buf_vram(self, &to, 0, to.len));
	} else {
		EXPECT_EQ(0, verbs_buf_vram(self, &from, parts[part].from, len) +
				     verbs_buf_vram(self, &to, parts[part].to,
						    len));
	}
	verbs_buf_check(_metadata, self, &to);
	verbs_buf_check(_metadata, self, &from);
free:
	verbs_buf_free(_metadata, &from);
	verbs_buf_free(_metadata, &to);
}

static void copy_all(struct __test_metadata *_metadata, VERBS_SELF *self,
		     enum place place, enum ibv_wr_opcode op)
{
	bool can_receive = op != IBV_WR_SEND ||
			   (self->v.odp & IBV_ODP_SUPPORT_RECV);
	size_t part;
	int sides;

	for (sides = FROM; sides <= (can_receive ? FROM | TO : FROM); sides++) {
		for (part = 0; part < ARRAY_SIZE(parts); part++) {
			copy_part(_metadata, self, place, op, sides, part);
			if (!_metadata->exit_code)
				continue;
			if (_metadata->exit_code == KSFT_FAIL)
				TH_LOG("sides %d, part %zu", sides, part);
			return;
		}
	}
}

TEST_F_TIMEOUT(verbs_place, rdma_write, TIMEOUT_S)
{
	copy_all(_metadata, &self->verbs, variant->place, IBV_WR_RDMA_WRITE);
}

TEST_F_TIMEOUT(verbs_place, rdma_read, TIMEOUT_S)
{
	copy_all(_metadata, &self->verbs, variant->place, IBV_WR_RDMA_READ);
}

TEST_F_TIMEOUT(verbs_place, send_receive, TIMEOUT_S)
{
	copy_all(_metadata, &self->verbs, variant->place, IBV_WR_SEND);
}

/* Registration, and later calls for a region */

/* It may look at pages, and leaves them where they are */
TEST_F_TIMEOUT(verbs, register_in_vram, TIMEOUT_S)
{
	struct verbs_buf buf, data;
	struct verbs_mark mark;

	if (self->no_gpu)
		SKIP(return, "no GPU");
	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, 0);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	verbs_mark(_metadata, self, &mark);
	buf.mr = verbs_reg(self, &buf, VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	EXPECT_EQ((long)PAGES, verbs_buf_vram(self, &buf, 0, buf.len));
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	verbs_expect_met(_metadata, self, &mark, PAGES);
	verbs_buf_check(_metadata, self, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* The user chooses the IOVA: a region that wraps around is refused without a report */
TEST_F_TIMEOUT(verbs, iova_wraps, TIMEOUT_S)
{
	struct verbs_buf buf;
	struct ibv_mr *mr;

	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, 0);
	errno = 0;
	mr = ibv_reg_mr_iova(self->v.pd, buf.p, buf.len, -(__u64)P2P_PAGE,
			     VERBS_REMOTE);
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(NULL, mr);
	verbs_buf_free(_metadata, &buf);
}

/*
 * The device takes the offset in a page from the IOVA, and a page can be huge: an
 * IOVA with another offset than the memory is refused
 */
TEST_F_TIMEOUT(verbs, iova_in_huge_page, TIMEOUT_S)
{
	const int access = VERBS_ODP | IBV_ACCESS_HUGETLB;
	const __u64 iova = 4 * P2P_HUGE;
	struct verbs_buf buf, data;
	struct verbs_end end;

	verbs_buf_init(_metadata, self, &buf, P2P_HUGE / P2P_PAGE, BEFORE, 0);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	if (p2p_huge_bytes(buf.p) != (long)P2P_HUGE)
		SKIP(goto free, "the kernel gives no huge pages");
	errno = 0;
	EXPECT_EQ(NULL, ibv_reg_mr_iova(self->v.pd, buf.p, buf.len,
					iova + P2P_PAGE, access));
	EXPECT_EQ(EINVAL, errno);

	buf.mr = ibv_reg_mr_iova(self->v.pd, buf.p, buf.len, iova, access);
	ASSERT_NE(NULL, buf.mr);
	end.p = (void *)(uintptr_t)(iova + P2P_PAGE);
	end.mr = buf.mr;
	verbs_expect_success(_metadata,
			     verbs_do(&self->link, IBV_WR_RDMA_WRITE,
				      verbs_at(&data, 0), end, data.len));
	memcpy(buf.want + 2 * P2P_PAGE, data.want + P2P_PAGE, data.len);
	verbs_buf_check(_metadata, self, &buf);
free:
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* Without on-demand paging pages come home once, when they are pinned */
TEST_F_TIMEOUT(verbs, pinned, TIMEOUT_S)
{
	struct verbs_buf buf, data;

	if (self->no_gpu)
		SKIP(return, "no GPU");
	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, 0);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	buf.mr = verbs_reg(self, &buf, VERBS_REMOTE);
	ASSERT_NE(NULL, buf.mr);
	EXPECT_EQ(0, verbs_buf_vram(self, &buf, 0, buf.len));
	EXPECT_EQ(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	verbs_buf_check(_metadata, self, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* A region of a dma-buf is found and prefetched as one of the process's memory */
TEST_F_TIMEOUT(verbs, prefetch_dmabuf, TIMEOUT_S)
{
	const size_t len = PAGES * P2P_PAGE;
	struct verbs_buf data;
	struct verbs_end end;
	struct ibv_sge sge;
	unsigned char *p;
	int fd;

	fd = verbs_dmabuf(_metadata, &p, len);
	if (fd < 0)
		SKIP(return, "no udmabuf");
	verbs_buf_init(_metadata, self, &data, PAGES, BEFORE, VERBS_REMOTE);
	end = (struct verbs_end){
		.p = p,
		.mr = ibv_reg_dmabuf_mr(self->v.pd, 0, len, (uintptr_t)p, fd,
					VERBS_REMOTE),
	};
	if (!end.mr && errno == EOPNOTSUPP)
		SKIP(return, "the RDMA device takes no dma-buf");
	ASSERT_NE(NULL, end.mr);
	sge = (struct ibv_sge){
		.addr = (uintptr_t)p,
		.length = len,
		.lkey = end.mr->lkey,
	};
	EXPECT_EQ(0, ibv_advise_mr(self->v.pd,
				   IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
				   IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	verbs_expect_success(_metadata, verbs_do(&self->link, IBV_WR_RDMA_WRITE,
						 verbs_at(&data, 0), end, len));
	verbs_same(_metadata, "dma-buf", data.want + P2P_PAGE, p, len);
	EXPECT_EQ(0, ibv_dereg_mr(end.mr));
	close(fd);
	EXPECT_EQ(0, munmap(p, len));
	verbs_buf_free(_metadata, &data);
}

static int advise(VERBS_SELF *self, struct verbs_buf *buf,
		  enum ib_uverbs_advise_mr_advice advice, __u32 flags)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)buf->p,
		.length = buf->len,
		.lkey = buf->mr->lkey,
	};
	int tries, ret = EBUSY;

	/* Where all pages come home, the kernel may give up after a second */
	for (tries = 0; ret == EBUSY && tries < 60; tries++)
		ret = ibv_advise_mr(self->v.pd, advice, flags, &sge, 1);
	return ret;
}

/* Advice that was waited for spares the transfer all page faults */
static void prefetch(struct __test_metadata *_metadata, VERBS_SELF *self,
		     size_t pages, enum ib_uverbs_advise_mr_advice advice,
		     __u32 flags)
{
	const bool faults = advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	const bool waits = flags & IBV_ADVISE_MR_FLAG_FLUSH;
	const bool writes = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	struct verbs_buf buf, data;
	struct verbs_mark mark;
	int ret;

	verbs_buf_init(_metadata, self, &buf, pages, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, pages, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	verbs_mark(_metadata, self, &mark);
	ret = advise(self, &buf, advice, flags);
	if (ret == EOPNOTSUPP)
		SKIP(goto free, "the RDMA device takes no advice");
	ASSERT_EQ(0, ret);
	if (!self->no_gpu && (self->peer || !faults || waits))
		EXPECT_EQ(self->peer || !faults ? (long)pages : 0,
			  verbs_buf_vram(self, &buf, 0, buf.len));
	if (faults && waits)
		verbs_expect_met(_metadata, self, &mark, pages);

	verbs_mark(_metadata, self, &mark);
	verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &buf, 0, &data, 0,
		   buf.len);
	/* An implicit region that was not there has nothing to look at */
	if (waits && self->peer && (faults || !self->implicit))
		verbs_expect_met(_metadata, self, &mark, 0);
	verbs_buf_check(_metadata, self, &data);
	verbs_buf_fill(&data, AFTER);
	verbs_mark(_metadata, self, &mark);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	if (waits && writes && self->peer)
		verbs_expect_met(_metadata, self, &mark, 0);
	verbs_buf_check(_metadata, self, &buf);
free:
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

TEST_F_TIMEOUT(verbs, prefetch, TIMEOUT_S)
{
	static const enum ib_uverbs_advise_mr_advice advice[] = {
		IBV_ADVISE_MR_ADVICE_PREFETCH,
		IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
		IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
	};
	size_t i;

	for (i = 0; i < 2 * ARRAY_SIZE(advice) && !_metadata->exit_code; i++) {
		prefetch(_metadata, self, PAGES, advice[i / 2],
			 i % 2 ? IBV_ADVISE_MR_FLAG_FLUSH : 0);
		if (_metadata->exit_code == KSFT_FAIL)
			TH_LOG("advice %d, flush %zu", advice[i / 2], i % 2);
	}
}

/* ... of much more than what a page fault brings */
TEST_F_TIMEOUT(verbs, prefetch_large, TIMEOUT_S)
{
	prefetch(_metadata, self, LARGE_PAGES,
		 IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH);
}

/* Pages that the device faulted in all regions, by rdma(8), or -1 */
static long odp_faults(void)
{
	static const char what[] = "page_faults ";
	FILE *f = popen("rdma statistic show mr 2>/dev/null", "r");
	char line[512], *at;
	long sum = -1;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		at = strstr(line, what);
		if (at)
			sum = strtol(at + strlen(what), NULL, 10) +
			      (sum < 0 ? 0 : sum);
	}
	pclose(f);
	return sum;
}

/*
 * ... for the first access to a buffer in VRAM, in reads of @step bytes; -1 if nobody
 * counts them, or if the device takes no advice
 */
static long first_touch(struct __test_metadata *_metadata, VERBS_SELF *self,
			size_t pages, size_t step, bool advised)
{
	struct verbs_buf buf, data;
	long faults = -1;
	size_t pos;
	int ret;

	verbs_buf_init(_metadata, self, &buf, pages, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, pages, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	if (advised) {
		ret = advise(self, &buf, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
			     IBV_ADVISE_MR_FLAG_FLUSH);
		if (ret == EOPNOTSUPP)
			goto free;
		ASSERT_EQ(0, ret);
	}
	faults = odp_faults();
	for (pos = 0; faults >= 0 && pos < buf.len; pos += step)
		verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &buf, pos, &data,
			   pos, step);
	if (faults >= 0) {
		faults = odp_faults() - faults;
		verbs_buf_check(_metadata, self, &data);
	}
free:
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
	return faults;
}

/* P2P_VERBS_PAGES: pages to touch, a multiple of 16 */
TEST_F_TIMEOUT(verbs, page_faults, TIMEOUT_S)
{
	const char *text = getenv("P2P_VERBS_PAGES");
	size_t pages = text ? strtoul(text, NULL, 0) : LARGE_PAGES;
	const size_t steps[] = { 64 << 10, pages * P2P_PAGE };
	long first, advised;
	int i;

	/* Registration maps what is in host memory: there are no faults then */
	if (self->no_gpu)
		SKIP(return, "no GPU");
	for (i = 0; i < 2; i++) {
		first = first_touch(_metadata, self, pages, steps[i], false);
		if (first < 0)
			P2P_SKIP(return, "rdma(8) counts no page faults");
		advised = first_touch(_metadata, self, pages, steps[i], true);
		if (advised < 0)
			P2P_SKIP(return, "the RDMA device takes no advice");
		TH_LOG("%zu KiB in reads of %zu KiB: %ld pages faulted; %ld after a prefetch",
		       pages * P2P_PAGE >> 10, steps[i] >> 10, first, advised);
		EXPECT_LT(0, first);
		EXPECT_GE(first, 1000 * advised);
	}
}

static int rereg(struct verbs_buf *buf, int what, struct ibv_pd *pd, int access)
{
	return ibv_rereg_mr(buf->mr, what, pd, NULL, 0, access) ? errno : 0;
}

TEST_F_TIMEOUT(verbs, rereg, TIMEOUT_S)
{
	const int reads = VERBS_ODP & ~IBV_ACCESS_REMOTE_WRITE;
	struct verbs_buf buf, data;
	struct verbs_mark mark;
	struct ibv_pd *pd;
	int ret;

	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	pd = ibv_alloc_pd(self->v.ctx);
	ASSERT_NE(NULL, pd);

	ret = rereg(&buf, IBV_REREG_MR_CHANGE_ACCESS, NULL, reads);
	if (ret == EOPNOTSUPP)
		SKIP(goto free, "the RDMA device does not change regions");
	ASSERT_EQ(0, ret);
	verbs_mark(_metadata, self, &mark);
	verbs_expect_error(_metadata, self,
			   verbs_do(&self->link, IBV_WR_RDMA_WRITE,
				    verbs_at(&data, 0), verbs_at(&buf, 0), 1),
			   IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR);
	verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &buf, 0, &data, 0,
		   buf.len);
	verbs_expect_met(_metadata, self, &mark, PAGES);

	ASSERT_EQ(0, rereg(&buf, IBV_REREG_MR_CHANGE_ACCESS, NULL, VERBS_ODP));
	ASSERT_EQ(0, rereg(&buf, IBV_REREG_MR_CHANGE_PD, pd, 0));
	verbs_expect_error(_metadata, self,
			   verbs_do(&self->link, IBV_WR_RDMA_WRITE,
				    verbs_at(&data, 0), verbs_at(&buf, 0), 1),
			   IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR);
	ASSERT_EQ(0, rereg(&buf, IBV_REREG_MR_CHANGE_PD, self->v.pd, 0));
	verbs_buf_fill(&data, AFTER);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	verbs_buf_check(_metadata, self, &buf);
free:
	EXPECT_EQ(0, ibv_dealloc_pd(pd));
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* There is no atomic access to a peer: such a region gets host memory */
TEST_F_TIMEOUT(verbs, atomic, TIMEOUT_S)
{
	struct verbs_buf buf, data;
	__u64 old;
	long out = 0;

	if (!self->v.atomic || !(self->v.odp & IBV_ODP_SUPPORT_ATOMIC))
		SKIP(return, "the RDMA device has no atomic operations on demand");
	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE,
		       VERBS_ODP | IBV_ACCESS_REMOTE_ATOMIC);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	if (!self->no_gpu)
		out = p2p_info(_metadata, &self->gpu).migrated_out;
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	EXPECT_EQ(0, verbs_buf_vram(self, &buf, 0, buf.len));
	if (!self->no_gpu)
		EXPECT_LE(out + (long)PAGES,
			  (long)p2p_info(_metadata, &self->gpu).migrated_out);
	verbs_buf_check(_metadata, self, &buf);

	verbs_buf_to_vram(_metadata, self, &buf);
	memcpy(&old, buf.want + P2P_PAGE, sizeof(old));
	verbs_expect_success(_metadata,
			     verbs_do(&self->link, IBV_WR_ATOMIC_FETCH_AND_ADD,
				      verbs_at(&data, 0), verbs_at(&buf, 0),
				      sizeof(old)));
	EXPECT_EQ(0, verbs_buf_vram(self, &buf, 0, P2P_PAGE));
	EXPECT_EQ(0, memcmp(&old, data.p, sizeof(old)));
	old++;
	memcpy(buf.want + P2P_PAGE, &old, sizeof(old));
	verbs_buf_check(_metadata, self, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* It may be added later, unless pages of a peer are mapped at that time */
TEST_F_TIMEOUT(verbs, atomic_added, TIMEOUT_S)
{
	struct verbs_buf buf, data;
	int ret;

	if (!self->v.atomic || !(self->v.odp & IBV_ODP_SUPPORT_ATOMIC))
		SKIP(return, "the RDMA device has no atomic operations on demand");
	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	ret = rereg(&buf, IBV_REREG_MR_CHANGE_ACCESS, NULL,
		    VERBS_ODP | IBV_ACCESS_REMOTE_ATOMIC);
	if (ret) {
		EXPECT_EQ(EOPNOTSUPP, ret);
		/* That the CPU looks brings them home */
		verbs_buf_check(_metadata, self, &buf);
		ret = rereg(&buf, IBV_REREG_MR_CHANGE_ACCESS, NULL,
			    VERBS_ODP | IBV_ACCESS_REMOTE_ATOMIC);
		verbs_buf_to_vram(_metadata, self, &buf);
	}
	if (ret == EOPNOTSUPP)
		P2P_SKIP(goto free, "the RDMA device does not change regions");
	ASSERT_EQ(0, ret);
	/* They are there still: nothing else takes their mappings away */
	if (!self->no_gpu && self->peer)
		EXPECT_EQ((long)buf.pages,
			  verbs_buf_vram(self, &buf, 0, buf.len));
	verbs_buf_fill(&data, AFTER);
	/* A page alone: its neighbours do not get their translations back */
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0, 1);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	EXPECT_EQ(0, verbs_buf_vram(self, &buf, 0, buf.len));
	verbs_buf_check(_metadata, self, &buf);
free:
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* A guest need not see the switches that are there */
static bool is_guest(void)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	bool found = false;
	char line[4096];

	while (f && !found && fgets(line, sizeof(line), f))
		found = !strncmp(line, "flags", 5) &&
			strstr(line, " hypervisor");
	if (f)
		fclose(f);
	return found;
}

/*
 * With relaxed ordering, pages of a peer are used only where it is known that reads
 * of them come back: below a switch that redirects nothing. A guest that sees none
 * may be below one that does. It counts also if it is asked for later.
 */
TEST_F_TIMEOUT(verbs, relaxed_ordering, TIMEOUT_S)
{
	const int relaxed = VERBS_ODP | IBV_ACCESS_RELAXED_ORDERING;
	const bool stays = self->peer && self->path == P2P_EXPECT_BUS_ADDR;
	struct verbs_buf buf, data;
	int ret, later;

	if (self->peer && !stays && !is_guest())
		SKIP(return, "there is no telling what the root complex does");
	/* Memory that is pinned may have it in any case */
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER,
		       VERBS_REMOTE | IBV_ACCESS_RELAXED_ORDERING);
	for (later = 0; later < 2; later++) {
		verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE,
			       later ? VERBS_ODP : relaxed);
		verbs_buf_to_vram(_metadata, self, &buf);
		verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &buf, 0, &data, 0,
			   buf.len);
		verbs_buf_check(_metadata, self, &data);
		EXPECT_EQ((later ? self->peer : stays) ? (long)PAGES : 0,
			  verbs_buf_vram(self, &buf, 0, buf.len));
		if (later) {
			ret = rereg(&buf, IBV_REREG_MR_CHANGE_ACCESS, NULL,
				    relaxed);
			if (ret == EOPNOTSUPP)
				P2P_SKIP(goto free,
					 "the RDMA device does not change regions");
			ASSERT_EQ(0, ret);
		}
		verbs_buf_to_vram(_metadata, self, &buf);
		verbs_buf_fill(&data, AFTER);
		verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf,
			   0, buf.len);
		EXPECT_EQ(stays ? (long)PAGES : 0,
			  verbs_buf_vram(self, &buf, 0, buf.len));
		verbs_buf_check(_metadata, self, &buf);
free:
		verbs_buf_free(_metadata, &buf);
	}
	verbs_buf_free(_metadata, &data);
}

/* What a process does with its memory between transfers */

/* It moves in both directions, and the GPU changes it */
TEST_F_TIMEOUT(verbs, again, TIMEOUT_S)
{
	struct verbs_buf buf, data;
	struct verbs_mark mark;
	__u64 i;

	if (self->no_gpu)
		SKIP(return, "no GPU");
	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	for (i = 0; i < 4; i++) {
		verbs_buf_to_vram(_metadata, self, &buf);
		p2p_fill(buf.want + P2P_PAGE, 1000 + i, 0, buf.len);
		EXPECT_EQ((long)PAGES, p2p_gpu_write(&self->gpu, buf.p,
						     buf.want + P2P_PAGE,
						     buf.len));
		verbs_mark(_metadata, self, &mark);
		verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &buf, 0, &data, 0,
			   buf.len);
		verbs_expect_met(_metadata, self, &mark, PAGES);
		verbs_buf_check(_metadata, self, &data);

		ASSERT_LE(0, p2p_gpu_to_host(&self->gpu, buf.p, buf.len));
		ASSERT_EQ(0, verbs_buf_vram(self, &buf, 0, buf.len));
		verbs_buf_fill(&data, AFTER + i);
		verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf,
			   0, buf.len);
		verbs_buf_to_vram(_metadata, self, &buf);
		verbs_buf_check(_metadata, self, &buf);
	}
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* Parent and child share pages in VRAM until one of them writes, by DMA or not */
TEST_F_TIMEOUT(verbs, fork, TIMEOUT_S)
{
	struct verbs_buf buf, data;
	int to_child[2];
	pid_t pid;
	char c;

	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len / 2);
	ASSERT_EQ(0, pipe(to_child));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		/* The second half is shared for the time being */
		memset(buf.p, 1, P2P_PAGE);
		memset(buf.want + P2P_PAGE, 1, P2P_PAGE);
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		verbs_buf_check(_metadata, self, &buf);
		_exit(0);
	}
	verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &buf, 0, &data, 0,
		   buf.len);
	verbs_buf_check(_metadata, self, &data);
	verbs_buf_fill(&data, AFTER);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);
	verbs_buf_check(_metadata, self, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/* Memory that the process gives up is out of reach, until there is new memory */
static void unmapped(struct __test_metadata *_metadata, VERBS_SELF *self,
		     bool theirs, int status, int other)
{
	struct verbs_buf buf, data;
	struct verbs_end gone, rest;

	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	verbs_buf_to_vram(_metadata, self, &buf);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
	verbs_buf_fill(&data, AFTER);
	gone = verbs_at(&buf, 0);
	rest = verbs_at(&data, 0);
	/* Nothing arrives: if it is theirs, it is read, and else written */
	verbs_expect_error(_metadata, self,
			   verbs_do(&self->link,
				    theirs ? IBV_WR_RDMA_READ :
					     IBV_WR_RDMA_WRITE,
				    theirs ? rest : gone, theirs ? gone : rest,
				    buf.len),
			   status, other);
	verbs_buf_check(_metadata, self, &data);
	verbs_buf_map(_metadata, &buf, MADV_NOHUGEPAGE);
	verbs_buf_to_vram(_metadata, self, &buf);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	verbs_buf_check(_metadata, self, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

TEST_F_TIMEOUT(verbs, unmapped_remote, TIMEOUT_S)
{
	unmapped(_metadata, self, true, IBV_WC_REM_ACCESS_ERR,
		 IBV_WC_REM_OP_ERR);
}

TEST_F_TIMEOUT(verbs, unmapped_local, TIMEOUT_S)
{
	/* rxe flushes its queue, and the request that failed with it */
	unmapped(_metadata, self, false, IBV_WC_LOC_PROT_ERR,
		 self->v.software ? IBV_WC_WR_FLUSH_ERR : IBV_WC_LOC_QP_OP_ERR);
}

/* A region does not allow more than the process may do */
TEST_F_TIMEOUT(verbs, read_only, TIMEOUT_S)
{
	struct verbs_buf buf, data;
	struct verbs_mark mark;
	struct ibv_mr *writable, *late;

	verbs_buf_init(_metadata, self, &buf, PAGES, BEFORE, VERBS_ODP);
	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	writable = buf.mr;
	/* To read, too, a device may ask for pages as its region allows them */
	buf.mr = verbs_reg(self, &buf, IBV_ACCESS_REMOTE_READ |
			   IBV_ACCESS_ON_DEMAND);
	ASSERT_NE(NULL, buf.mr);
	verbs_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
	/* It may look at pages when it is registered */
	late = verbs_reg(self, &buf, VERBS_ODP);
	ASSERT_NE(NULL, late);
	verbs_expect_error(_metadata, self,
			   verbs_do(&self->link, IBV_WR_RDMA_WRITE,
				    verbs_at(&data, 0),
				    (struct verbs_end){ buf.p, late },
				    buf.len),
			   IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR);
	EXPECT_EQ(0, ibv_dereg_mr(late));
	verbs_expect_error(_metadata, self,
			   verbs_do(&self->link, IBV_WR_RDMA_WRITE,
				    verbs_at(&data, 0),
				    (struct verbs_end){ buf.p, writable },
				    buf.len),
			   IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR);
	EXPECT_EQ(self->no_gpu ? 0 : (long)PAGES,
		  verbs_buf_vram(self, &buf, 0, buf.len));
	verbs_mark(_metadata, self, &mark);
	verbs_copy(_metadata, self, IBV_WR_RDMA_READ, &buf, 0, &data, 0,
		   buf.len);
	verbs_expect_met(_metadata, self, &mark, PAGES);
	verbs_buf_check(_metadata, self, &data);
	verbs_buf_check(_metadata, self, &buf);

	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ | PROT_WRITE));
	EXPECT_EQ(0, ibv_dereg_mr(buf.mr));
	buf.mr = writable;
	verbs_buf_to_vram(_metadata, self, &buf);
	verbs_buf_fill(&data, AFTER);
	verbs_copy(_metadata, self, IBV_WR_RDMA_WRITE, &data, 0, &buf, 0,
		   buf.len);
	verbs_buf_check(_metadata, self, &buf);
	verbs_buf_free(_metadata, &buf);
	verbs_buf_free(_metadata, &data);
}

/*
 * More translations than a driver can give to the device in one go, and hardly any
 * page: the others must not get the translations of the first ones
 */
TEST_F_TIMEOUT(verbs, sparse, TIMEOUT_S)
{
	struct verbs_buf data, buf = { .len = 1UL << 30 };
	size_t pos;

	verbs_buf_init(_metadata, self, &data, PAGES, OTHER, VERBS_REMOTE);
	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		     MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf.p);
	madvise(buf.p, buf.len, MADV_NOHUGEPAGE);
	p2p_fill(buf.p, BEFORE, 0, data.len);
	buf.mr = verbs_reg(self, &buf, VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	/* Not at the beginning of a block of eight, which mlx5 writes at once */
	for (pos = buf.len / 2 + 3 * P2P_PAGE; pos < buf.len;
	     pos += buf.len / 4) {
		memset(data.want + P2P_PAGE, 0, data.len);
		verbs_expect_success(_metadata,
				     verbs_do(&self->link, IBV_WR_RDMA_READ,
					      verbs_at(&data, 0),
					      verbs_at(&buf, pos), data.len));
		verbs_buf_check(_metadata, self, &data);
	}
	EXPECT_EQ(0, ibv_dereg_mr(buf.mr));
	EXPECT_EQ(0, munmap(buf.p, buf.len));
	verbs_buf_free(_metadata, &data);
}

/*
 * Translations go to the device in groups of eight, many groups at a time. Here the
 * last group has one, and is sent from a buffer that held others before, which must
 * not fill the group up. They could not be used, because a region has a length: it
 * takes a model of a device to tell
 */
TEST_F_TIMEOUT(verbs, odd_length, TIMEOUT_S)
{
	/* Translations that mlx5 takes at a time, by the size of its buffer */
	static const size_t at_a_time[] = { ((1 << 20) - 64) / 8, (1 << 16) / 8,
					    P2P_PAGE / 8 };
	struct verbs_buf data, buf = { .len = (1UL << 29) + P2P_PAGE };
	size_t i;

	verbs_buf_init(_metadata, self, &data, 1, OTHER, VERBS_REMOTE);
	buf.p = mmap(NULL, buf.len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		     MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf.p);
	madvise(buf.p, buf.len, MADV_NOHUGEPAGE);
	for (i = 0; i < ARRAY_SIZE(at_a_time); i++)
		p2p_fill(buf.p + buf.len - at_a_time[i] * P2P_PAGE, BEFORE, 0,
			 8 * P2P_PAGE);
	p2p_fill(buf.p + buf.len - P2P_PAGE, AFTER, 0, P2P_PAGE);
	buf.mr = verbs_reg(self, &buf, VERBS_ODP);
	ASSERT_NE(NULL, buf.mr);
	p2p_fill(data.want + P2P_PAGE, AFTER, 0, data.len);
	verbs_expect_success(_metadata,
			     verbs_do(&self->link, IBV_WR_RDMA_READ,
				      verbs_at(&data, 0),
				      verbs_at(&buf, buf.len - P2P_PAGE),
				      data.len));
	verbs_buf_check(_metadata, self, &data);
	EXPECT_EQ(0, ibv_dereg_mr(buf.mr));
	EXPECT_EQ(0, munmap(buf.p, buf.len));
	verbs_buf_free(_metadata, &data);
}

TEST_HARNESS_MAIN
