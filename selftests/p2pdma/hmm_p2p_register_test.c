// SPDX-License-Identifier: GPL-2.0
/*
 * Test of registrations: a card without page faults gets the addresses of
 * buffers once, copies from one to the other, and drops them when they move
 *
 * The test NIC keeps the addresses in a list of its own, and uses nothing else.
 * Pages must leave that list before they move, whoever moves them.
 */
#include "p2p_fixture.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGES	8U

/* Where a buffer is */
enum place { IN_HOST, IN_GPU, IN_OTHER_GPU };

/* A buffer in a GPU, and what the card knows it by */
struct side {
	struct p2p_buf buf;
	enum place place;
	enum p2p_expect path;	/* from the card to that GPU */
	struct p2p_gpu gpu;
};

static bool in_place(const struct side *side)
{
	return side->place != IN_HOST && p2p_peer_path(side->path);
}

static void to_place(struct __test_metadata *_metadata, struct side *side)
{
	if (side->place == IN_HOST)
		return;
	ASSERT_EQ((long)side->buf.pages,
		  p2p_gpu_to_vram(&side->gpu, side->buf.p, side->buf.len));
	ASSERT_EQ((long)side->buf.pages,
		  p2p_gpu_resident(&side->gpu, side->buf.p, side->buf.len));
}

/* Memory with pages 0.. of @seed at its place, not registered */
static void side_alloc(struct __test_metadata *_metadata, P2P_SELF *self,
		       struct side *side, enum place place, size_t pages,
		       __u64 seed)
{
	*side = (struct side){ .place = place, .path = self->path };
	side->gpu = self->gpu;
	if (place == IN_OTHER_GPU) {
		side->path = p2p_expect(1);
		ASSERT_EQ(0, p2p_gpu_open(&side->gpu, 1));
	}
	p2p_buf_alloc(_metadata, &side->buf, pages, seed);
	/* Compaction leaves it alone if vm.compact_unevictable_allowed is 0 */
	if (place == IN_HOST)
		ASSERT_EQ(0, mlock(side->buf.p, side->buf.len));
	to_place(_metadata, side);
}

static void side_pin(struct __test_metadata *_metadata, P2P_SELF *self,
		     struct side *side)
{
	ASSERT_EQ(0, p2p_nic_pin(&self->nic, side->buf.p, side->buf.len,
				 P2PTEST_NIC_MR_WRITE, &side->buf.handle));
}

static void side_init(struct __test_metadata *_metadata, P2P_SELF *self,
		      struct side *side, enum place place, size_t pages,
		      __u64 seed)
{
	side_alloc(_metadata, self, side, place, pages, seed);
	side_pin(_metadata, self, side);
}

static void side_free(struct __test_metadata *_metadata, P2P_SELF *self,
		      struct side *side)
{
	EXPECT_EQ(0, p2p_nic_unpin(&self->nic, side->buf.handle));
	EXPECT_EQ(0, munmap(side->buf.p, side->buf.len));
	if (side->place == IN_OTHER_GPU)
		p2p_gpu_close(&side->gpu);
}

/* What the card knows: all pages, at the place where they have to be */
static void side_known(struct __test_metadata *_metadata, P2P_SELF *self,
		       struct side *side, __u64 revoked)
{
	struct p2ptest_nic_pinned pinned;
	struct p2p_view view;

	ASSERT_EQ(0, p2p_nic_pinned(&self->nic, side->buf.handle, &pinned,
				    &view));
	EXPECT_EQ(side->buf.pages, pinned.nr);
	EXPECT_EQ(side->buf.pages, view.writable);
	EXPECT_EQ(revoked, pinned.revoked);
	EXPECT_EQ(side->buf.pages + revoked, pinned.mapped);
	EXPECT_LE(1U, pinned.runs);
	EXPECT_GE(side->buf.pages, pinned.runs);
	EXPECT_EQ(side->buf.pages,
		  view.kind[in_place(side) ? p2p_peer_kind(side->path) :
					     P2PTEST_PAGE_HOST]);
	if (side->place != IN_HOST && side->path != P2P_EXPECT_NONE)
		EXPECT_EQ(side->buf.pages,
			  view.reason[p2p_path_reason(side->path)]);
}

static int copy(P2P_SELF *self, const struct side *src, const struct side *dst,
		struct p2ptest_nic_copy *copy)
{
	struct p2ptest_nic_copy all = { };

	if (!copy)
		copy = &all;
	if (!copy->len)
		copy->len = src->buf.len;
	copy->src = src->buf.handle;
	copy->dst = dst->buf.handle;
	return p2p_nic_copy(&self->nic, copy);
}

/* The trio, and more: from anywhere to anywhere */

FIXTURE(trio)
{
	P2P_SELF p2p;
};

FIXTURE_VARIANT(trio)
{
	enum place from, to;
};

FIXTURE_VARIANT_ADD(trio, host_host) { IN_HOST, IN_HOST };
FIXTURE_VARIANT_ADD(trio, gpu_host) { IN_GPU, IN_HOST };
FIXTURE_VARIANT_ADD(trio, host_gpu) { IN_HOST, IN_GPU };
FIXTURE_VARIANT_ADD(trio, gpu_gpu) { IN_GPU, IN_GPU };
FIXTURE_VARIANT_ADD(trio, gpu_other_gpu) { IN_GPU, IN_OTHER_GPU };
FIXTURE_VARIANT_ADD(trio, other_gpu_gpu) { IN_OTHER_GPU, IN_GPU };

FIXTURE_SETUP(trio)
{
	p2p_setup(_metadata, &self->p2p, NULL);
}

FIXTURE_TEARDOWN_PARENT(trio)
{
	p2p_teardown(_metadata, &self->p2p, NULL);
}

TEST_F_TIMEOUT(trio, copies, TIMEOUT_S)
{
	const bool other = variant->from == IN_OTHER_GPU ||
			   variant->to == IN_OTHER_GPU;
	P2P_SELF *p2p = &self->p2p;
	struct p2ptest_nic_copy part = {
		.src_offset = 4090, .dst_offset = 13, .len = P2P_PAGE + 100,
	};
	struct p2ptest_gpu_info before;
	struct side src, dst;
	unsigned char *data;
	__u64 locs[PAGES];

	if (other && p2p_gpu_count() < 2)
		SKIP(return, "another topology has a second GPU");
	if (other && p2p_expect(1) == P2P_EXPECT_UNKNOWN)
		SKIP(return, "P2PTEST_EXPECT does not say what path there is");
	side_alloc(_metadata, p2p, &src, variant->from, PAGES, BEFORE);
	side_alloc(_metadata, p2p, &dst, variant->to, PAGES, OTHER);
	before = p2p_info(_metadata, &p2p->gpu);
	side_pin(_metadata, p2p, &src);
	side_pin(_metadata, p2p, &dst);
	EXPECT_EQ(0, copy(p2p, &src, &dst, NULL));

	/* Once found, addresses are good for any number of copies */
	side_known(_metadata, p2p, &src, 0);
	side_known(_metadata, p2p, &dst, 0);
	if (p2p_peer_path(p2p->path))
		EXPECT_EQ(0U, p2p_moves(_metadata, &p2p->gpu, &before));

	/* It is there, before the CPU brings it home by looking at it */
	if (in_place(&dst)) {
		ASSERT_EQ(0, p2p_gpu_lookup(&dst.gpu, dst.buf.p, dst.buf.len,
					    locs));
		if (dst.place == IN_GPU)
			p2p_vram_pattern(_metadata, p2p, locs, PAGES, BEFORE);
		data = calloc(1, dst.buf.len);
		ASSERT_NE(NULL, data);
		EXPECT_EQ((long)PAGES, p2p_gpu_read(&dst.gpu, dst.buf.p, data,
						    dst.buf.len));
		p2p_expect_pattern(_metadata, "GPU read", data, BEFORE, 0,
				   dst.buf.len);
		free(data);
	}
	if (in_place(&src))
		EXPECT_EQ((long)PAGES, p2p_gpu_resident(&src.gpu, src.buf.p,
							src.buf.len));

	/* Pages need not begin where the others do */
	EXPECT_EQ(0, copy(p2p, &src, &dst, &part));
	EXPECT_EQ(part.len, part.done);
	EXPECT_EQ(0U, part.remapped);
	side_known(_metadata, p2p, &dst, 0);
	p2p_buf_cpu_read(_metadata, &src.buf, BEFORE);
	p2p_expect_pattern(_metadata, "in front", dst.buf.p, BEFORE, 0, 13);
	EXPECT_EQ(0, memcmp(dst.buf.p + 13, src.buf.p + 4090, part.len));
	p2p_expect_pattern(_metadata, "behind", dst.buf.p + 13 + part.len,
			   BEFORE, 13 + part.len, dst.buf.len - 13 - part.len);
	side_free(_metadata, p2p, &src);
	side_free(_metadata, p2p, &dst);
}

/* Revocations */

static __u64 revoked(struct __test_metadata *_metadata, P2P_SELF *self,
		     const struct side *side)
{
	struct p2ptest_nic_pinned pinned;

	EXPECT_EQ(0, p2p_nic_pinned(&self->nic, side->buf.handle, &pinned,
				    NULL));
	return pinned.revoked;
}

/* Pages move, and move back: each time the card drops and then finds them */
TEST_F_TIMEOUT(p2p, moved, TIMEOUT_S)
{
	struct p2ptest_nic_copy done = { };
	struct p2ptest_nic_pinned pinned;
	struct side src, dst;
	struct p2p_view view;
	__u64 total;

	if (!p2p_peer_path(self->path))
		SKIP(return, "no path to the GPU is another topology");
	side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, self, &dst, IN_HOST, PAGES, OTHER);
	ASSERT_EQ(0, copy(self, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &dst.buf, BEFORE);
	EXPECT_EQ(0U, revoked(_metadata, self, &dst));

	ASSERT_EQ(2, p2p_gpu_to_host(&self->gpu, src.buf.p + P2P_PAGE,
				     2 * P2P_PAGE));
	ASSERT_EQ(0, p2p_nic_pinned(&self->nic, src.buf.handle, &pinned,
				    &view));
	EXPECT_LE(1U, pinned.revocations);
	EXPECT_EQ(2U, pinned.revoked);
	EXPECT_EQ(2U, view.kind[P2PTEST_PAGE_UNMAPPED]);
	EXPECT_EQ(PAGES - 2, view.peer);

	/* The CPU has other data there now; the card finds it */
	p2p_fill(src.buf.p + P2P_PAGE, OTHER, P2P_PAGE, 2 * P2P_PAGE);
	EXPECT_EQ(0, copy(self, &src, &dst, &done));
	EXPECT_EQ(2U, done.remapped);
	p2p_expect_pattern(_metadata, "moved", dst.buf.p + P2P_PAGE, OTHER,
			   P2P_PAGE, 2 * P2P_PAGE);
	p2p_expect_pattern(_metadata, "rest", dst.buf.p + 3 * P2P_PAGE, BEFORE,
			   3 * P2P_PAGE, dst.buf.len - 3 * P2P_PAGE);
	ASSERT_EQ(0, p2p_nic_pinned(&self->nic, src.buf.handle, &pinned,
				    &view));
	EXPECT_EQ(2U, view.kind[P2PTEST_PAGE_HOST]);

	/* To move some of them, the GPU's driver may ask for all */
	ASSERT_EQ(2, p2p_gpu_to_vram(&self->gpu, src.buf.p, src.buf.len));
	total = revoked(_metadata, self, &src);
	EXPECT_LE(4U, total);
	EXPECT_EQ(0, copy(self, &src, &dst, NULL));
	side_known(_metadata, self, &src, total);
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
}

/* The CPU always wins: it touches a page, and the card drops the page */
TEST_F_TIMEOUT(p2p, touched, TIMEOUT_S)
{
	struct side src, dst;

	if (!p2p_peer_path(self->path))
		SKIP(return, "no path to the GPU is another topology");
	side_init(_metadata, self, &src, IN_HOST, PAGES, BEFORE);
	side_init(_metadata, self, &dst, IN_GPU, PAGES, OTHER);
	p2p_fill(dst.buf.p, AFTER, 0, dst.buf.len);
	EXPECT_EQ(PAGES, revoked(_metadata, self, &dst));
	EXPECT_EQ(0, copy(self, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &dst.buf, BEFORE);
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
}

/*
 * An address is freed and used for something else, maybe in another GPU. The
 * registration is of the address: it must never reach what was there before.
 */
TEST_F_TIMEOUT(p2p, reused, TIMEOUT_S)
{
	const enum place other =
		p2p_gpu_count() < 2 ? IN_GPU : IN_OTHER_GPU;
	struct side src, dst, mine;

	side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, self, &dst, IN_HOST, PAGES, OTHER);
	ASSERT_EQ(0, copy(self, &src, &dst, NULL));
	side_alloc(_metadata, self, &mine, IN_HOST, PAGES, OTHER);

	ASSERT_EQ(0, munmap(src.buf.p, src.buf.len));
	EXPECT_EQ(PAGES, revoked(_metadata, self, &src));
	EXPECT_EQ(-EFAULT, copy(self, &src, &dst, NULL));
	/* Somebody else gets the video memory */
	mine.place = IN_GPU;
	to_place(_metadata, &mine);
	ASSERT_EQ(src.buf.p, mmap(src.buf.p, src.buf.len,
				  PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
				  0));
	p2p_fill(src.buf.p, AFTER, 0, src.buf.len);
	if (other == IN_OTHER_GPU) {
		src.place = other;
		src.path = p2p_expect(1);
		ASSERT_EQ(0, p2p_gpu_open(&src.gpu, 1));
	}
	to_place(_metadata, &src);
	EXPECT_EQ(0, copy(self, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &dst.buf, AFTER);
	/* The card also writes to the new memory, and not to the other's */
	p2p_fill(dst.buf.p, BEFORE, 0, dst.buf.len);
	EXPECT_EQ(0, copy(self, &dst, &src, NULL));
	p2p_buf_cpu_read(_metadata, &src.buf, BEFORE);
	p2p_buf_cpu_read(_metadata, &mine.buf, OTHER);
	EXPECT_EQ(0, munmap(mine.buf.p, mine.buf.len));
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
}

struct copier {
	pthread_t thread;
	P2P_SELF *self;
	struct side *src, *dst;
	struct p2ptest_nic_copy copy;
	int ret;
};

static void *copier_run(void *arg)
{
	struct copier *c = arg;

	c->ret = copy(c->self, c->src, c->dst, &c->copy);
	return NULL;
}

/* Another thread frees the memory while the card copies */
TEST_F_TIMEOUT(p2p, freed_by_thread, TIMEOUT_S)
{
	const size_t half = LONG_PAGES / 2 * P2P_PAGE;
	struct side src, dst, mine;
	struct copier c = { .self = self, .src = &src, .dst = &dst };

	side_init(_metadata, self, &src, IN_HOST, LONG_PAGES, AFTER);
	side_init(_metadata, self, &dst, IN_GPU, LONG_PAGES, BEFORE);
	ASSERT_EQ(0, pthread_create(&c.thread, NULL, copier_run, &c));
	p2p_sleep_ms(MIDDLE_MS);
	ASSERT_EQ(0, munmap(dst.buf.p + half, half));
	/* The same video memory, for somebody else */
	side_alloc(_metadata, self, &mine, IN_GPU, LONG_PAGES, OTHER);
	ASSERT_EQ(0, pthread_join(c.thread, NULL));
	EXPECT_EQ(-EFAULT, c.ret);
	EXPECT_LT(0U, c.copy.done);
	EXPECT_EQ(half, c.copy.done);
	p2p_expect_pattern(_metadata, "done", dst.buf.p, AFTER, 0, half);
	p2p_buf_cpu_read(_metadata, &mine.buf, OTHER);
	EXPECT_EQ(0, munmap(mine.buf.p, mine.buf.len));
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
}

/* Pages move all the time, and nothing is lost */
TEST_F_TIMEOUT(p2p, moving, TIMEOUT_S)
{
	struct side src, dst;
	struct copier c = { .self = self, .src = &src, .dst = &dst };
	long ret;
	int i;

	side_init(_metadata, self, &src, IN_GPU, LONG_PAGES, AFTER);
	side_init(_metadata, self, &dst, IN_GPU, LONG_PAGES, BEFORE);
	ASSERT_EQ(0, pthread_create(&c.thread, NULL, copier_run, &c));
	for (i = 0; i < 16; i++) {
		struct side *side = i & 2 ? &src : &dst;

		p2p_sleep_ms(7 * TRANSFER_MS);
		if (i & 1)
			ret = p2p_gpu_to_vram(&self->gpu, side->buf.p,
					      side->buf.len);
		else
			ret = p2p_gpu_to_host(&self->gpu, side->buf.p,
					      side->buf.len);
		EXPECT_LE(0, ret);
	}
	ASSERT_EQ(0, pthread_join(c.thread, NULL));
	EXPECT_EQ(0, c.ret);
	EXPECT_LT(0U, c.copy.remapped);
	p2p_buf_cpu_read(_metadata, &src.buf, AFTER);
	p2p_buf_cpu_read(_metadata, &dst.buf, AFTER);
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
}

/*
 * Two registrations of the same memory: when one ends, the other stays; when
 * the memory goes, both lose it
 */
TEST_F_TIMEOUT(p2p, twice, TIMEOUT_S)
{
	struct side src, dst, again, third;

	side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, self, &dst, IN_HOST, PAGES, OTHER);
	again = src;
	/* Out of reach, the first one has brought it home */
	if (!in_place(&again))
		again.place = IN_HOST;
	side_pin(_metadata, self, &again);
	EXPECT_NE(src.buf.handle, again.buf.handle);
	side_known(_metadata, self, &again, 0);
	ASSERT_EQ(0, p2p_nic_unpin(&self->nic, src.buf.handle));
	EXPECT_EQ(-ENOENT, copy(self, &src, &dst, NULL));
	EXPECT_EQ(-ENOENT, p2p_nic_unpin(&self->nic, src.buf.handle));
	EXPECT_EQ(0, copy(self, &again, &dst, NULL));
	side_known(_metadata, self, &again, 0);
	p2p_buf_cpu_read(_metadata, &dst.buf, BEFORE);

	third = again;
	side_pin(_metadata, self, &third);
	ASSERT_EQ(0, munmap(src.buf.p, src.buf.len));
	EXPECT_EQ(PAGES, revoked(_metadata, self, &again));
	EXPECT_EQ(PAGES, revoked(_metadata, self, &third));
	EXPECT_EQ(-EFAULT, copy(self, &again, &dst, NULL));
	EXPECT_EQ(-EFAULT, copy(self, &third, &dst, NULL));
	EXPECT_EQ(0U, revoked(_metadata, self, &dst));
	EXPECT_EQ(0, p2p_nic_unpin(&self->nic, third.buf.handle));
	side_free(_metadata, self, &again);
	side_free(_metadata, self, &dst);
}

/* After a fork, each process has pages of its own when one of them writes */
TEST_F_TIMEOUT(p2p, forked, TIMEOUT_S)
{
	struct side src, dst;
	int to_child[2];
	pid_t pid;
	char c;

	side_init(_metadata, self, &src, IN_HOST, PAGES, AFTER);
	side_init(_metadata, self, &dst, IN_GPU, PAGES, BEFORE);
	ASSERT_EQ(0, pipe(to_child));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		struct side own;

		ASSERT_EQ(1, read(to_child[0], &c, 1));
		/* The parent's memory is not ours, although the address is */
		p2p_buf_cpu_read(_metadata, &dst.buf, BEFORE);
		EXPECT_EQ(-EPERM, copy(self, &src, &dst, NULL));
		EXPECT_EQ(-EPERM, p2p_nic_unpin(&self->nic, src.buf.handle));
		/* Our own is */
		side_init(_metadata, self, &own, IN_GPU, PAGES, OTHER);
		own.buf.handle = src.buf.handle;
		EXPECT_EQ(-EPERM, copy(self, &own, &dst, NULL));
		_exit(0);
	}
	/* The card must not write to the page that both have */
	EXPECT_EQ(0, copy(self, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &dst.buf, AFTER);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
}

/* Adds what the IOMMU unmapped, in bytes, and how much of that by one call at most */
static void unmapped(struct __test_metadata *_metadata,
		     const struct p2p_trace *trace, unsigned long *sum,
		     unsigned long *most)
{
	char path[160], line[512], *size;
	unsigned long bytes;
	FILE *f;

	snprintf(path, sizeof(path), "%s/trace", trace->dir);
	f = fopen(path, "re");
	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f)) {
		size = strstr(line, " unmap: ");
		size = size ? strstr(size, " size=") : NULL;
		if (!size)
			continue;
		bytes = strtoul(size + strlen(" size="), NULL, 10);
		*sum += bytes;
		if (bytes > *most)
			*most = bytes;
	}
	fclose(f);
}

/*
 * Pages are unmapped many at once. But not too many: some drivers of IOMMUs have
 * interrupts off for all that one call unmaps.
 */
TEST_F_TIMEOUT(p2p, unmapped_in_parts, TIMEOUT_S)
{
	unsigned long sum = 0, most = 0;
	char name[P2P_PCI_NAME], path[160];
	struct p2p_trace trace;
	struct side side;

	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, name));
	if (!p2p_pci_translated(name))
		SKIP(return, "another topology: no IOMMU translates");
	side_init(_metadata, self, &side, IN_HOST, 3 * P2P_HUGE / P2P_PAGE + 1,
		  BEFORE);
	ASSERT_EQ(0, p2p_trace_start(&trace));
	snprintf(path, sizeof(path), "%s/events/iommu/unmap/enable", trace.dir);
	ASSERT_EQ(0, p2p_write(path, "1"));
	side_free(_metadata, self, &side);
	unmapped(_metadata, &trace, &sum, &most);
	p2p_trace_stop(&trace);
	EXPECT_LE(side.buf.len, sum);
	EXPECT_LT(P2P_PAGE, most);
	EXPECT_GE(P2P_HUGE, most);
}

/* Ends */

/* Closing the file ends all, and unmapping ends the memory, in either order */
TEST_F_TIMEOUT(p2p, closed, TIMEOUT_S)
{
	const struct p2p_nic gone = { .fd = self->nic.fd };
	struct p2ptest_nic_copy arg = { .len = 1 };
	struct side src, dst;

	side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, self, &dst, IN_GPU, PAGES, OTHER);
	EXPECT_EQ(0, munmap(src.buf.p, src.buf.len));
	p2p_nic_close(&self->nic);
	EXPECT_EQ(-EBADF, p2p_nic_copy(&gone, &arg));
	p2p_buf_cpu_read(_metadata, &dst.buf, OTHER);
	EXPECT_EQ(0, munmap(dst.buf.p, dst.buf.len));
}

/* The file goes to another process, by a socket, and the memory does not */
TEST_F_TIMEOUT(p2p, passed, TIMEOUT_S)
{
	char control[CMSG_SPACE(sizeof(int))] = { };
	struct p2p_nic passed = { };
	struct side src, own;
	struct cmsghdr *cmsg;
	struct iovec iov;
	struct msghdr msg;
	int sock[2];
	pid_t pid;
	char c;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, sock));
	pid = p2p_fork_child(_metadata);
	iov = (struct iovec){ .iov_base = &c, .iov_len = 1 };
	msg = (struct msghdr){
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control),
	};
	if (!pid) {
		ASSERT_EQ(1, recvmsg(sock[1], &msg, 0));
		memcpy(&passed.fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
		side_alloc(_metadata, self, &own, IN_GPU, PAGES, OTHER);
		ASSERT_EQ(1, read(sock[1], &src.buf.handle,
				  sizeof(src.buf.handle)) / 4);
		EXPECT_EQ(0, p2p_nic_pin(&passed, own.buf.p, own.buf.len,
					 P2PTEST_NIC_MR_WRITE,
					 &own.buf.handle));
		EXPECT_EQ(-EPERM, p2p_nic_unpin(&passed, src.buf.handle));
		EXPECT_EQ(-EPERM, p2p_nic_copy(&passed,
					       &(struct p2ptest_nic_copy){
			.src = src.buf.handle, .dst = own.buf.handle,
			.len = P2P_PAGE,
		}));
		/* With the memory gone and the file still open elsewhere */
		_exit(0);
	}
	c = 0;
	cmsg = CMSG_FIRSTHDR(&msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &self->nic.fd, sizeof(int));
	side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
	ASSERT_EQ(1, sendmsg(sock[0], &msg, 0));
	ASSERT_EQ(4, write(sock[0], &src.buf.handle, sizeof(src.buf.handle)));
	p2p_wait_child(_metadata, pid);
	side_known(_metadata, self, &src, 0);
	/* Of its memory nothing is left, although the file is ours as well */
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu,
				       p2p_gpu_resident(&self->gpu, src.buf.p,
							src.buf.len)));
	side_free(_metadata, self, &src);
}

/* Another program takes over the process, and the file stays open */
TEST_F_TIMEOUT(p2p, exec, TIMEOUT_S)
{
	int to_parent[2];
	struct side src;
	pid_t pid;
	char c;

	ASSERT_EQ(0, pipe(to_parent));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		ASSERT_EQ(0, fcntl(self->nic.fd, F_SETFD, 0));
		side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
		ASSERT_EQ(0, fcntl(to_parent[1], F_SETFD, FD_CLOEXEC));
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		execlp("sleep", "sleep", "1000000", (char *)NULL);
		_exit(1);
	}
	close(to_parent[1]);
	ASSERT_EQ(1, read(to_parent[0], &c, 1));
	/* When it was replaced, the other end is closed */
	ASSERT_EQ(0, read(to_parent[0], &c, 1));
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	p2p_kill_child(_metadata, pid);
}

/*
 * A process is killed while the card is about to get a large buffer. It does not
 * finish that before it dies: a file's pages tell how far it got.
 */
TEST_F_TIMEOUT(p2p, killed, TIMEOUT_S)
{
	const size_t len = 256UL << 20;
	int fd = syscall(SYS_memfd_create, "p2p", 0);
	struct stat st = { };
	struct side src, dst;
	__u32 handle;
	int i;
	pid_t pid;
	void *p;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, len));
	p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		p2p_nic_pin(&self->nic, p, len, 0, &handle);
		_exit(1);
	}
	for (i = 0; i < MIDDLE_MS && !st.st_blocks; i++) {
		p2p_sleep_ms(1);
		ASSERT_EQ(0, fstat(fd, &st));
	}
	p2p_kill_child(_metadata, pid);
	ASSERT_EQ(0, fstat(fd, &st));
	EXPECT_LT(0, st.st_blocks);
	EXPECT_GT(len / 2, st.st_blocks * 512UL);

	/* The card is as good as before */
	side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, self, &dst, IN_HOST, PAGES, OTHER);
	EXPECT_EQ(0, copy(self, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &dst.buf, BEFORE);
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
	EXPECT_EQ(0, munmap(p, len));
	close(fd);
}

FIXTURE(unbind)
{
	P2P_SELF p2p;
	char gpu[P2P_PCI_NAME];
	char nic[P2P_PCI_NAME];
};

FIXTURE_SETUP(unbind)
{
	p2p_setup(_metadata, &self->p2p, NULL);
	if (self->p2p.nic.fd < 0)
		return;
	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, self->gpu));
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, self->nic));
}

FIXTURE_TEARDOWN_PARENT(unbind)
{
	/* Also if the test did not get that far */
	p2p_pci_command(self->nic, 0, P2P_PCI_MEMORY);
	p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0);
	p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0);
	p2p_teardown(_metadata, &self->p2p, NULL);
}

TEST_F_TIMEOUT(unbind, gpu, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct side src, dst;

	side_init(_metadata, p2p, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, p2p, &dst, IN_HOST, PAGES, OTHER);
	ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
	if (p2p_peer_path(p2p->path))
		EXPECT_EQ(PAGES, revoked(_metadata, p2p, &src));
	EXPECT_EQ(0, copy(p2p, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &dst.buf, BEFORE);

	/* Then the card, with all of that still registered */
	ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->nic));
	EXPECT_EQ(-ENODEV, copy(p2p, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &src.buf, BEFORE);
}

TEST_F_TIMEOUT(unbind, nic, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct side src, dst;

	side_init(_metadata, p2p, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, p2p, &dst, IN_GPU, PAGES, OTHER);
	ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->nic));
	EXPECT_EQ(-ENODEV, copy(p2p, &src, &dst, NULL));
	EXPECT_EQ(-ENODEV, p2p_nic_unpin(&p2p->nic, src.buf.handle));
	/* The memory does not care */
	EXPECT_LE(0, p2p_gpu_to_vram(&p2p->gpu, src.buf.p, src.buf.len));
	EXPECT_EQ((long)PAGES, p2p_gpu_resident(&p2p->gpu, src.buf.p,
						src.buf.len));
	ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
	p2p_buf_cpu_read(_metadata, &src.buf, BEFORE);
	p2p_buf_cpu_read(_metadata, &dst.buf, OTHER);
}

struct toucher {
	pthread_t thread;
	struct p2p_buf *buf;
	size_t differs;
	__u64 ms;
};

static void *toucher_run(void *arg)
{
	struct toucher *t = arg;
	__u64 start;

	p2p_sleep_ms(TRANSFER_MS / 2);
	start = p2p_now_ms();
	t->differs = p2p_compare(t->buf->p, BEFORE, 0, P2P_PAGE);
	t->ms = p2p_now_ms() - start;
	return NULL;
}

/*
 * A card that does not answer any more: its registers say nothing of DMA that is in
 * flight. The page must not move as long as it might be written, and somebody waits
 * for it. So the driver takes the bus away from the card.
 */
TEST_F_TIMEOUT(unbind, silent_nic, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct toucher t = { };
	struct side src, dst;
	int command;

	side_init(_metadata, p2p, &src, IN_GPU, PAGES, BEFORE);
	side_init(_metadata, p2p, &dst, IN_GPU, PAGES, OTHER);
	ASSERT_LE(0, p2p_pci_command(self->nic, P2P_PCI_MEMORY, 0));
	t.buf = &src.buf;
	ASSERT_EQ(0, pthread_create(&t.thread, NULL, toucher_run, &t));
	EXPECT_EQ(-EIO, copy(p2p, &src, &dst, NULL));
	ASSERT_EQ(0, pthread_join(t.thread, NULL));
	EXPECT_EQ(P2P_PAGE, t.differs);
	/* It waited for the rest of the transfer. Elsewhere it is at home already. */
	if (p2p_peer_path(p2p->path))
		EXPECT_LE(TRANSFER_MS / 4U, t.ms);
	EXPECT_GT(10000U, t.ms);
	command = p2p_pci_command(self->nic, 0, 0);
	ASSERT_LE(0, command);
	EXPECT_EQ(0, command & P2P_PCI_MASTER);

	/* It is not trusted again, until it is bound again */
	ASSERT_LE(0, p2p_pci_command(self->nic, 0, P2P_PCI_MEMORY));
	EXPECT_EQ(-EIO, copy(p2p, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &src.buf, BEFORE);
	p2p_buf_cpu_read(_metadata, &dst.buf, OTHER);
	ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->nic));
	ASSERT_EQ(0, p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0));
	p2p_nic_close(&p2p->nic);
	ASSERT_EQ(0, p2p_nic_open(&p2p->nic, 0));
	side_pin(_metadata, p2p, &src);
	side_pin(_metadata, p2p, &dst);
	EXPECT_EQ(0, copy(p2p, &src, &dst, NULL));
	p2p_buf_cpu_read(_metadata, &dst.buf, BEFORE);
	side_free(_metadata, p2p, &src);
	side_free(_metadata, p2p, &dst);
}

/* Bad input */

TEST_F_TIMEOUT(p2p, bad_pin, TIMEOUT_S)
{
	struct p2ptest_nic_unpin unpin = { .handle = 1, .pad = 1 };
	const struct p2p_nic *nic = &self->nic;
	const unsigned char *bar;
	struct p2p_buf buf;
	__u32 handle;
	size_t len;

	p2p_buf_alloc(_metadata, &buf, 4, BEFORE);
	EXPECT_EQ(-EINVAL, p2p_nic_pin(nic, buf.p, 0, 0, &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_pin(nic, buf.p, ~0UL, 0, &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_pin(nic, (void *)~0UL, 2, 0, &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_pin(nic, buf.p, 1, 1U << 31, &handle));
	EXPECT_EQ(-E2BIG, p2p_nic_pin(nic, buf.p, (1UL << 30) + 1, 0,
				      &handle));
	/* Kernel addresses, nothing, a hole, and no right to write */
	EXPECT_GT(0, p2p_nic_pin(nic, (void *)-8192L, P2P_PAGE, 0, &handle));
	EXPECT_EQ(-EFAULT, p2p_nic_pin(nic, (void *)P2P_PAGE, P2P_PAGE, 0,
				       &handle));
	ASSERT_EQ(0, munmap(buf.p + P2P_PAGE, P2P_PAGE));
	EXPECT_EQ(-EFAULT, p2p_nic_pin(nic, buf.p, buf.len, 0, &handle));
	ASSERT_EQ(0, mprotect(buf.p + 2 * P2P_PAGE, P2P_PAGE, PROT_READ));
	EXPECT_EQ(-EPERM, p2p_nic_pin(nic, buf.p + 2 * P2P_PAGE, P2P_PAGE,
				      P2PTEST_NIC_MR_WRITE, &handle));
	EXPECT_EQ(0, p2p_nic_pin(nic, buf.p + 2 * P2P_PAGE + 1, 2, 0,
				 &handle));
	EXPECT_EQ(0, p2p_nic_unpin(nic, handle));
	EXPECT_EQ(-ENOENT, p2p_nic_unpin(nic, handle));
	EXPECT_EQ(-EINVAL, p2p_ioctl(nic->fd, P2PTEST_NIC_UNPIN, &unpin) ?
				   -errno : 0);
	/* Memory of a device that the process has mapped is none to share */
	bar = p2p_vram_map(0, &len);
	if (bar) {
		EXPECT_GT(0, p2p_nic_pin(nic, bar, P2P_PAGE, 0, &handle));
		munmap((void *)bar, len);
	}
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

TEST_F_TIMEOUT(p2p, bad_copy, TIMEOUT_S)
{
	struct p2ptest_nic_copy arg;
	struct side src, dst, inside;

	side_init(_metadata, self, &src, IN_GPU, 2, BEFORE);
	side_init(_metadata, self, &dst, IN_HOST, 2, OTHER);
	arg = (struct p2ptest_nic_copy){ .len = src.buf.len, .dst_offset = 1 };
	EXPECT_EQ(-EINVAL, copy(self, &src, &dst, &arg));
	arg = (struct p2ptest_nic_copy){ .len = src.buf.len, .src_offset = 1 };
	EXPECT_EQ(-EINVAL, copy(self, &src, &dst, &arg));
	arg = (struct p2ptest_nic_copy){ .len = ~0UL, .src_offset = 1 };
	EXPECT_EQ(-EINVAL, copy(self, &src, &dst, &arg));
	arg = (struct p2ptest_nic_copy){ .len = 1, .src_offset = ~0UL };
	EXPECT_EQ(-EINVAL, copy(self, &src, &dst, &arg));
	arg = (struct p2ptest_nic_copy){ .len = 1, .pad = 1 };
	EXPECT_EQ(-EINVAL, copy(self, &src, &dst, &arg));
	arg = (struct p2ptest_nic_copy){ .src = src.buf.handle,
					 .dst = dst.buf.handle };
	EXPECT_EQ(-EINVAL, p2p_nic_copy(&self->nic, &arg));

	/* A buffer ends where it ends, not with its last page */
	inside = dst;
	ASSERT_EQ(0, p2p_nic_pin(&self->nic, dst.buf.p + 16, 32,
				 P2PTEST_NIC_MR_WRITE, &inside.buf.handle));
	arg = (struct p2ptest_nic_copy){ .len = 33 };
	EXPECT_EQ(-EINVAL, copy(self, &src, &inside, &arg));
	arg = (struct p2ptest_nic_copy){ .len = 32 };
	EXPECT_EQ(0, copy(self, &src, &inside, &arg));
	p2p_expect_pattern(_metadata, "inside", dst.buf.p + 16, BEFORE, 0, 32);
	p2p_expect_pattern(_metadata, "in front", dst.buf.p, OTHER, 0, 16);
	p2p_expect_pattern(_metadata, "behind", dst.buf.p + 48, OTHER, 48,
			   dst.buf.len - 48);
	ASSERT_EQ(0, p2p_nic_unpin(&self->nic, inside.buf.handle));

	/* The card does not write to a buffer registered for reading */
	ASSERT_EQ(0, p2p_nic_pin(&self->nic, dst.buf.p, dst.buf.len, 0,
				 &inside.buf.handle));
	EXPECT_EQ(-EPERM, copy(self, &src, &inside, NULL));
	EXPECT_EQ(0, copy(self, &inside, &dst, NULL));
	ASSERT_EQ(0, p2p_nic_unpin(&self->nic, inside.buf.handle));

	/* Not even later, when the process lost the right to */
	ASSERT_EQ(0, mprotect(dst.buf.p, dst.buf.len, PROT_READ));
	EXPECT_EQ(-EPERM, copy(self, &src, &dst, NULL));
	p2p_expect_pattern(_metadata, "read-only", dst.buf.p + 48, OTHER, 48,
			   dst.buf.len - 48);
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &dst);
}

/* Memory of a file is as good as any: the card follows when it goes */
TEST_F_TIMEOUT(p2p, file, TIMEOUT_S)
{
	struct side src, file = { .buf.pages = PAGES,
				  .buf.len = PAGES * P2P_PAGE };
	int fd = syscall(SYS_memfd_create, "p2p", 0);

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, file.buf.len));
	file.buf.p = mmap(NULL, file.buf.len, PROT_READ | PROT_WRITE,
			  MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, (void *)file.buf.p);
	ASSERT_EQ(0, mlock(file.buf.p, file.buf.len));
	side_init(_metadata, self, &src, IN_GPU, PAGES, BEFORE);
	side_pin(_metadata, self, &file);
	EXPECT_EQ(0, copy(self, &src, &file, NULL));
	p2p_buf_cpu_read(_metadata, &file.buf, BEFORE);
	ASSERT_EQ(0, ftruncate(fd, 0));
	EXPECT_EQ(PAGES, revoked(_metadata, self, &file));
	EXPECT_EQ(-EFAULT, copy(self, &src, &file, NULL));
	close(fd);
	side_free(_metadata, self, &src);
	side_free(_metadata, self, &file);
}

/* A driver may ask for what is in a GPU and nothing else: nothing moves then */
TEST_F_TIMEOUT(p2p, resident, TIMEOUT_S)
{
	const __u32 flags = P2PTEST_NIC_MR_WRITE | P2PTEST_NIC_PIN_RESIDENT;
	const bool peer = p2p_peer_path(self->path);
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	__u32 handle;

	p2p_buf_alloc(_metadata, &buf, PAGES, BEFORE);
	EXPECT_EQ(-EINVAL, p2p_nic_pin(&self->nic, buf.p, buf.len, flags,
				       &handle));
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	ASSERT_EQ(peer ? 0 : -EOPNOTSUPP,
		  p2p_nic_pin(&self->nic, buf.p, buf.len, flags, &handle));
	EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
	EXPECT_EQ((long)PAGES, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	if (peer)
		EXPECT_EQ(0, p2p_nic_unpin(&self->nic, handle));

	/* One page in the host is enough, and it is still there afterwards */
	p2p_fill(buf.p, BEFORE, 0, 1);
	EXPECT_GT(0, p2p_nic_pin(&self->nic, buf.p, buf.len, flags, &handle));
	EXPECT_EQ((long)PAGES - 1, p2p_gpu_resident(&self->gpu, buf.p,
						    buf.len));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

/*
 * Pages of the GPU whose DMA mapping fails come to host memory, and no others. All
 * of them are looked at once more, and not once more for each.
 */
FIXTURE(unmappable)
{
	P2P_SELF p2p;
};

FIXTURE_VARIANT(unmappable)
{
	size_t victims;
};

FIXTURE_VARIANT_ADD(unmappable, one) { 1 };
FIXTURE_VARIANT_ADD(unmappable, all) { PAGES };

FIXTURE_SETUP(unmappable)
{
	p2p_setup(_metadata, &self->p2p, NULL);
	if (self->p2p.nic.fd < 0)
		return;
	if (!p2p_maps_can_fail())
		SKIP(return, "the kernel has no CONFIG_FAIL_HMM_DMA_MAP");
	if (!p2p_peer_path(self->p2p.path))
		SKIP(return, "another topology: no path to the GPU");
}

FIXTURE_TEARDOWN_PARENT(unmappable)
{
	EXPECT_EQ(0, p2p_maps_work());
	p2p_teardown(_metadata, &self->p2p, NULL);
}

TEST_F_TIMEOUT(unmappable, come_home, TIMEOUT_S)
{
	const __u32 flags = P2PTEST_NIC_MR_WRITE | P2PTEST_NIC_PIN_RESIDENT;
	P2P_SELF *p2p = &self->p2p;
	struct p2ptest_nic_pinned pinned;
	struct p2ptest_gpu_info before;
	struct p2p_stats stats;
	struct p2p_view view;
	struct p2p_buf buf;
	__u32 handle;

	p2p_buf_alloc(_metadata, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	ASSERT_EQ(0, variant->victims == PAGES ?
		     p2p_aliases_fail(&p2p->gpu) :
		     p2p_map_fails(&p2p->gpu, buf.p + 3 * P2P_PAGE));
	before = p2p_info(_metadata, &p2p->gpu);
	EXPECT_EQ(-EIO, p2p_nic_pin(&p2p->nic, buf.p, buf.len, flags, &handle));
	EXPECT_EQ(0U, p2p_moves(_metadata, &p2p->gpu, &before));

	ASSERT_EQ(0, p2p_stats_read(&stats));
	ASSERT_EQ(0, p2p_nic_pin(&p2p->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &handle));
	ASSERT_EQ(0, p2p_stats_since(&stats));
	EXPECT_EQ(variant->victims, stats.pages[P2PTEST_REASON_MAP_FAILED]);
	/* All are found once, others than the victims twice more: after one migrates */
	EXPECT_GE(3 * PAGES - 2 * variant->victims,
		  stats.pages[p2p_path_reason(p2p->path)]);
	EXPECT_EQ(variant->victims, p2p_moves(_metadata, &p2p->gpu, &before));

	ASSERT_EQ(0, p2p_nic_pinned(&p2p->nic, handle, &pinned, &view));
	EXPECT_EQ(PAGES, pinned.nr);
	EXPECT_EQ(variant->victims, view.kind[P2PTEST_PAGE_HOST]);
	EXPECT_EQ(PAGES - variant->victims,
		  view.kind[p2p_peer_kind(p2p->path)]);
	EXPECT_EQ(variant->victims, view.reason[P2PTEST_REASON_MAP_FAILED]);
	EXPECT_EQ(0, p2p_nic_unpin(&p2p->nic, handle));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

TEST_HARNESS_MAIN
