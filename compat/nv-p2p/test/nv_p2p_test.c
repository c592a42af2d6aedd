// SPDX-License-Identifier: GPL-2.0
/*
 * Test of nv-p2p: memory of the test GPU, and a client that knows GPUDirect RDMA
 *
 * Built with the series' selftests: see run.sh.
 */
#include "p2p_harness.h"
#include "nv_p2p_client.h"

#include <sys/ioctl.h>
#include <sys/mman.h>

#ifndef ENOTSUPP
#define ENOTSUPP 524	/* the kernel's own */
#endif

#define GPU_PAGE	0x10000UL
#define LEN		(4 * GPU_PAGE)
#define PART		2048U

FIXTURE(nv)
{
	struct p2p_gpu gpu;
	struct p2ptest_gpu_info info;
	enum p2p_expect path;
	int fd;
	unsigned char *p;	/* LEN bytes of BEFORE in the GPU, aligned */
};

static int call(int fd, unsigned long cmd, void *arg)
{
	int ret = ioctl(fd, cmd, arg);

	return ret < 0 ? -errno : ret;
}

static int get(int fd, const void *p, size_t len, struct client_get *get)
{
	struct client_get own = { };

	if (!get)
		get = &own;
	get->addr = (uintptr_t)p;
	get->len = len;
	return call(fd, CLIENT_GET, get);
}

static int transfer(int fd, unsigned long cmd, size_t offset, void *buf,
		    __u32 flags)
{
	struct client_transfer t = {
		.offset = offset, .buf = (uintptr_t)buf, .len = PART,
		.flags = flags,
	};

	return call(fd, cmd, &t);
}

static __u64 moves(struct __test_metadata *_metadata,
		   FIXTURE_DATA(nv) *self)
{
	return p2p_moves(_metadata, &self->gpu, &self->info);
}

/* Memory at a multiple of GPU_PAGE, as cudaMalloc() has it */
static unsigned char *alloc_aligned(struct __test_metadata *_metadata,
				    __u64 seed)
{
	unsigned char *p = p2p_alloc(LEN + GPU_PAGE);
	size_t head;

	ASSERT_NE(NULL, p);
	head = -(uintptr_t)p % GPU_PAGE;
	if (head)
		ASSERT_EQ(0, munmap(p, head));
	ASSERT_EQ(0, munmap(p + head + LEN, GPU_PAGE - head));
	p2p_fill(p + head, seed, 0, LEN);
	return p + head;
}

FIXTURE_SETUP(nv)
{
	int path = p2p_expect(0);

	if (!p2p_gpu_count())
		SKIP(return, "no test GPU");
	ASSERT_EQ(0, p2p_gpu_open(&self->gpu, 0));
	ASSERT_EQ(0, p2p_gpu_info(&self->gpu, &self->info));
	ASSERT_EQ(0U, self->info.pages_used);
	ASSERT_LT(P2P_EXPECT_UNKNOWN, path);
	self->path = path;
	self->fd = open("/dev/nv_p2p_client", O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->fd);
	self->p = alloc_aligned(_metadata, BEFORE);
	ASSERT_EQ((long)(LEN / P2P_PAGE),
		  p2p_gpu_to_vram(&self->gpu, self->p, LEN));
	ASSERT_EQ(0, p2p_gpu_info(&self->gpu, &self->info));
}

FIXTURE_TEARDOWN_PARENT(nv)
{
	struct p2p_gpu gpu;

	ASSERT_EQ(0, p2p_gpu_open(&gpu, 0));
	EXPECT_EQ(0, p2p_gpu_wait_used(&gpu, 0));
	p2p_gpu_close(&gpu);
}

/* The addresses are those of the memory, and it stays where it is */
TEST_F_TIMEOUT(nv, pages, TIMEOUT_S)
{
	struct client_get arg = { .token = 0x1234 };
	unsigned char part[PART];
	size_t at;

	ASSERT_EQ(0, get(self->fd, self->p, LEN, &arg));
	EXPECT_EQ(0x00010002U, arg.version);
	/* Video memory that nobody else has is in one piece */
	EXPECT_EQ(GPU_PAGE, arg.page_size);
	EXPECT_EQ(LEN / GPU_PAGE, arg.entries);
	for (at = 0; at < LEN; at += 3 * P2P_PAGE) {
		EXPECT_EQ(0, transfer(self->fd, CLIENT_READ, at, part, 0));
		p2p_expect_pattern(_metadata, "CPU by BAR", part, BEFORE, at,
				   PART);
	}
	EXPECT_EQ(0U, moves(_metadata, self));
	EXPECT_EQ(0, call(self->fd, CLIENT_PUT, NULL));
	EXPECT_EQ(-ENOENT, call(self->fd, CLIENT_PUT, NULL));

	/* Nothing is left that would call anybody */
	p2p_expect_pattern(_metadata, "CPU", self->p, BEFORE, 0, LEN);
	EXPECT_EQ(0, call(self->fd, CLIENT_CALLBACKS, NULL));
}

/* Whatever the GPU has free next belongs to somebody else now */
static void take_page(struct __test_metadata *_metadata, FIXTURE_DATA(nv) *self)
{
	unsigned char *p = p2p_alloc(P2P_PAGE);

	ASSERT_NE(NULL, p);
	*p = 1;
	ASSERT_EQ(1, p2p_gpu_to_vram(&self->gpu, p, P2P_PAGE));
}

/* LEN bytes are presented page by page; those at @at are where they should be */
static void expect_small(struct __test_metadata *_metadata,
			 FIXTURE_DATA(nv) *self, unsigned char *p, __u64 seed,
			 size_t at)
{
	struct client_get arg = { };
	unsigned char part[PART];

	ASSERT_EQ(0, get(self->fd, p, LEN, &arg));
	EXPECT_EQ(P2P_PAGE, arg.page_size);
	EXPECT_EQ(LEN / P2P_PAGE, arg.entries);
	EXPECT_EQ(0, transfer(self->fd, CLIENT_READ, at, part, 0));
	p2p_expect_pattern(_metadata, "CPU by BAR", part, seed, at, PART);
	EXPECT_EQ(0, call(self->fd, CLIENT_PUT, NULL));
}

/* Pages that are not in a row are presented one by one */
TEST_F_TIMEOUT(nv, scattered, TIMEOUT_S)
{
	/* One page changes its place */
	ASSERT_EQ(1, p2p_gpu_to_host(&self->gpu, self->p + P2P_PAGE,
				     P2P_PAGE));
	take_page(_metadata, self);
	ASSERT_EQ(1, p2p_gpu_to_vram(&self->gpu, self->p + P2P_PAGE,
				     P2P_PAGE));
	expect_small(_metadata, self, self->p, BEFORE, P2P_PAGE);
}

/*
 * Pages that are in a row, but do not begin at a multiple of the larger size. What
 * they are is up to the GPU's allocator, and looked up.
 */
TEST_F_TIMEOUT(nv, unaligned, TIMEOUT_S)
{
	__u64 locs[LEN / P2P_PAGE];
	unsigned char *p;
	size_t i;

	take_page(_metadata, self);
	p = alloc_aligned(_metadata, OTHER);
	ASSERT_EQ((long)(LEN / P2P_PAGE), p2p_gpu_to_vram(&self->gpu, p, LEN));
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, p, LEN, locs));
	for (i = 0; i < LEN / P2P_PAGE; i++)
		ASSERT_EQ(p2p_loc_offset(locs[0]) + i * P2P_PAGE,
			  p2p_loc_offset(locs[i]));
	ASSERT_NE(0U, p2p_loc_offset(locs[0]) % GPU_PAGE);
	expect_small(_metadata, self, p, OTHER, GPU_PAGE);
}

/* The device reads and writes it in place, or gets an error */
TEST_F_TIMEOUT(nv, dma, TIMEOUT_S)
{
	struct client_map map = { };
	unsigned char part[PART];
	const size_t at = GPU_PAGE + 5 * P2P_PAGE;

	EXPECT_EQ(-EINVAL, call(self->fd, CLIENT_MAP, &map));
	ASSERT_EQ(0, get(self->fd, self->p, LEN, NULL));
	if (!p2p_peer_path(self->path)) {
		EXPECT_EQ(-ENOTSUPP, call(self->fd, CLIENT_MAP, &map));
		EXPECT_EQ(0U, moves(_metadata, self));
		EXPECT_EQ(0, call(self->fd, CLIENT_CALLBACKS, NULL));
		EXPECT_EQ(0, call(self->fd, CLIENT_PUT, NULL));
		return;
	}
	ASSERT_EQ(0, call(self->fd, CLIENT_MAP, &map));
	EXPECT_EQ(0x00020003U, map.version);
	EXPECT_EQ(LEN / GPU_PAGE, map.entries);
	EXPECT_EQ(0, transfer(self->fd, CLIENT_DMA, at, part, 0));
	p2p_expect_pattern(_metadata, "DMA read", part, BEFORE, at, PART);
	p2p_fill(part, AFTER, at, PART);
	EXPECT_EQ(0, transfer(self->fd, CLIENT_DMA, at, part, CLIENT_WRITE));
	EXPECT_EQ(1, p2p_gpu_read(&self->gpu, self->p + at, part, PART));
	p2p_expect_pattern(_metadata, "GPU read", part, AFTER, at, PART);
	EXPECT_EQ(0U, moves(_metadata, self));

	EXPECT_EQ(0, call(self->fd, CLIENT_UNMAP, NULL));
	EXPECT_EQ(-ENOENT, transfer(self->fd, CLIENT_DMA, at, part, 0));
	ASSERT_EQ(0, call(self->fd, CLIENT_MAP, &map));
	EXPECT_EQ(0, call(self->fd, CLIENT_PUT, NULL));
	EXPECT_EQ(0, call(self->fd, CLIENT_CALLBACKS, NULL));
	p2p_expect_pattern(_metadata, "in front", self->p, BEFORE, 0, at);
	p2p_expect_pattern(_metadata, "written", self->p + at, AFTER, at, PART);
	p2p_expect_pattern(_metadata, "behind", self->p + at + PART, BEFORE,
			   at + PART, LEN - at - PART);
}

/* Whoever takes the memory away: the client gets one callback, before */

FIXTURE(revoked)
{
	FIXTURE_DATA(nv) nv;
};

FIXTURE_VARIANT(revoked)
{
	enum { FREED, TOUCHED, MOVED, REPLACED } how;
};

FIXTURE_VARIANT_ADD(revoked, freed) { FREED };
FIXTURE_VARIANT_ADD(revoked, touched) { TOUCHED };
FIXTURE_VARIANT_ADD(revoked, moved) { MOVED };
FIXTURE_VARIANT_ADD(revoked, replaced) { REPLACED };

FIXTURE_SETUP(revoked)
{
	nv_setup(_metadata, &self->nv, NULL);
}

FIXTURE_TEARDOWN_PARENT(revoked)
{
	nv_teardown(_metadata, &self->nv, NULL);
}

TEST_F_TIMEOUT(revoked, once, TIMEOUT_S)
{
	FIXTURE_DATA(nv) *nv = &self->nv;
	struct client_map map;
	unsigned char part[PART];
	int again;

	ASSERT_EQ(0, get(nv->fd, nv->p, LEN, NULL));
	if (p2p_peer_path(nv->path))
		ASSERT_EQ(0, call(nv->fd, CLIENT_MAP, &map));
	for (again = 0; again < 2; again++) {
		unsigned char *p = nv->p + again * GPU_PAGE;

		switch (variant->how) {
		case FREED:
			ASSERT_EQ(0, munmap(p, GPU_PAGE));
			break;
		case TOUCHED:
			p2p_expect_pattern(_metadata, "CPU", p, BEFORE,
					   p - nv->p, P2P_PAGE);
			break;
		case MOVED:
			EXPECT_EQ(16, p2p_gpu_to_host(&nv->gpu, p, GPU_PAGE));
			break;
		case REPLACED:
			ASSERT_EQ(p, mmap(p, GPU_PAGE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS |
					  MAP_FIXED, -1, 0));
			break;
		}
		EXPECT_EQ(1, call(nv->fd, CLIENT_CALLBACKS, NULL));
	}
	EXPECT_EQ(-ENOENT, call(nv->fd, CLIENT_PUT, NULL));
	EXPECT_EQ(-ENOENT, transfer(nv->fd, CLIENT_DMA, 0, part, 0));
	EXPECT_EQ(-ENOENT, transfer(nv->fd, CLIENT_READ, 0, part, 0));

	/* The client can get again what is still in the GPU, and nothing else */
	EXPECT_EQ(-EINVAL, get(nv->fd, nv->p, LEN, NULL));
	ASSERT_EQ(0, get(nv->fd, nv->p + 2 * GPU_PAGE, 2 * GPU_PAGE, NULL));
	EXPECT_EQ(0, transfer(nv->fd, CLIENT_READ, 0, part, 0));
	p2p_expect_pattern(_metadata, "again", part, BEFORE, 2 * GPU_PAGE,
			   PART);
	EXPECT_EQ(0, call(nv->fd, CLIENT_PUT, NULL));
	EXPECT_EQ(1, call(nv->fd, CLIENT_CALLBACKS, NULL));
}

/*
 * The GPU goes while its pages are held: each client gets one callback, may take its
 * time to free what it has, and finds the memory at home
 */

FIXTURE(gone)
{
	FIXTURE_DATA(nv) nv;
	char name[P2P_PCI_NAME];
};

FIXTURE_VARIANT(gone)
{
	enum { UNBOUND, UNLOADED, REMOVED } how;
};

FIXTURE_VARIANT_ADD(gone, unbound) { UNBOUND };
FIXTURE_VARIANT_ADD(gone, unloaded) { UNLOADED };
FIXTURE_VARIANT_ADD(gone, removed) { REMOVED };

FIXTURE_SETUP(gone)
{
	nv_setup(_metadata, &self->nv, NULL);
	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, self->name));
}

FIXTURE_TEARDOWN_PARENT(gone)
{
	nv_teardown(_metadata, &self->nv, NULL);
}

static int scan_again(void)
{
	int fd = open("/sys/bus/pci/rescan", O_WRONLY | O_CLOEXEC), ret;

	if (fd < 0)
		return -errno;
	ret = write(fd, "1", 1) == 1 ? 0 : -errno;
	close(fd);
	return ret;
}

TEST_F_TIMEOUT(gone, told, TIMEOUT_S)
{
	struct client_get later = { .flags = CLIENT_FREE_LATER };
	FIXTURE_DATA(nv) *nv = &self->nv;
	unsigned char part[PART];
	struct client_map map;
	int fd[2] = { nv->fd }, i;

	fd[1] = open("/dev/nv_p2p_client", O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, fd[1]);
	for (i = 0; i < 2; i++) {
		ASSERT_EQ(0, get(fd[i], nv->p, LEN, i ? &later : NULL));
		if (p2p_peer_path(nv->path))
			ASSERT_EQ(0, call(fd[i], CLIENT_MAP, &map));
	}

	p2p_gpu_close(&nv->gpu);
	switch (variant->how) {
	case UNBOUND:
		ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->name));
		break;
	case UNLOADED:
		ASSERT_EQ(0, p2p_module_unload(P2P_GPU_DRIVER));
		break;
	case REMOVED:
		ASSERT_EQ(0, p2p_pci_attr_set(self->name, "remove", "1"));
		break;
	}
	for (i = 0; i < 2; i++) {
		EXPECT_EQ(1, call(fd[i], CLIENT_CALLBACKS, NULL));
		EXPECT_EQ(-ENOENT, transfer(fd[i], CLIENT_DMA, 0, part, 0));
		EXPECT_EQ(-ENOENT, transfer(fd[i], CLIENT_READ, 0, part, 0));
	}
	EXPECT_EQ(-ENOENT, call(fd[0], CLIENT_PUT, NULL));
	EXPECT_EQ(-EINVAL, get(fd[0], nv->p, LEN, NULL));
	p2p_expect_pattern(_metadata, "CPU", nv->p, BEFORE, 0, LEN);

	switch (variant->how) {
	case UNBOUND:
		ASSERT_EQ(0, p2p_pci_bind(P2P_GPU_DRIVER, self->name, 0));
		break;
	case UNLOADED:
		ASSERT_EQ(0, p2p_driver_reload(P2P_GPU_DRIVER, ""));
		break;
	case REMOVED:
		ASSERT_EQ(0, scan_again());
		break;
	}
	ASSERT_EQ(0, p2p_gpu_open(&nv->gpu, 0));
	ASSERT_EQ((long)(LEN / P2P_PAGE),
		  p2p_gpu_to_vram(&nv->gpu, nv->p, LEN));
	EXPECT_EQ(0, get(fd[0], nv->p, LEN, NULL));
	/* The old table has no part in that; it is freed now */
	EXPECT_EQ(-EINVAL, call(fd[1], CLIENT_PUT, NULL));
	EXPECT_EQ(-ENOENT, call(fd[1], CLIENT_PUT, NULL));
	EXPECT_EQ(0, transfer(fd[0], CLIENT_READ, 0, part, 0));
	p2p_expect_pattern(_metadata, "CPU by BAR", part, BEFORE, 0, PART);
	EXPECT_EQ(0, call(fd[0], CLIENT_PUT, NULL));
	for (i = 0; i < 2; i++)
		EXPECT_EQ(1, call(fd[i], CLIENT_CALLBACKS, NULL));
}

/* What is no memory of a GPU, or none of this process, is an error */
TEST_F_TIMEOUT(nv, refused, TIMEOUT_S)
{
	struct client_get arg = { .flags = CLIENT_NO_CALLBACK };
	unsigned char *host = alloc_aligned(_metadata, OTHER);
	pid_t pid;

	EXPECT_EQ(-EINVAL, get(self->fd, host, LEN, NULL));
	EXPECT_EQ(-EINVAL, get(self->fd, self->p, 0, NULL));
	EXPECT_EQ(-EINVAL, get(self->fd, self->p + P2P_PAGE, GPU_PAGE, NULL));
	EXPECT_EQ(-EINVAL, get(self->fd, self->p, P2P_PAGE, NULL));
	EXPECT_EQ(-EINVAL, get(self->fd, self->p, -GPU_PAGE, NULL));
	EXPECT_EQ(-EINVAL, get(self->fd, self->p, 2 * LEN, NULL));
	EXPECT_EQ(-EINVAL, get(self->fd, (void *)GPU_PAGE, GPU_PAGE, NULL));
	EXPECT_EQ(-ENOTSUPP, get(self->fd, self->p, LEN, &arg));
	/* Of the right to write there is none */
	ASSERT_EQ(0, mprotect(self->p, GPU_PAGE, PROT_READ));
	EXPECT_EQ(-EINVAL, get(self->fd, self->p, LEN, NULL));
	EXPECT_EQ(0U, moves(_metadata, self));

	/* Tokens are ignored: it is the caller's memory, or nobody's */
	ASSERT_EQ(0, madvise(self->p, LEN, MADV_DONTFORK));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		EXPECT_EQ(-EINVAL, get(self->fd, self->p, LEN,
				       &(struct client_get){ .token = 1 }));
		_exit(0);
	}
	p2p_wait_child(_metadata, pid);
	EXPECT_EQ(0U, moves(_metadata, self));
	EXPECT_EQ(0, call(self->fd, CLIENT_CALLBACKS, NULL));
}

/* The process ends, and the file does not */
TEST_F_TIMEOUT(nv, exit, TIMEOUT_S)
{
	pid_t pid = p2p_fork_child(_metadata);

	if (!pid) {
		unsigned char *own = alloc_aligned(_metadata, OTHER);

		ASSERT_EQ((long)(LEN / P2P_PAGE),
			  p2p_gpu_to_vram(&self->gpu, own, LEN));
		ASSERT_EQ(0, get(self->fd, own, LEN, NULL));
		_exit(0);
	}
	p2p_wait_child(_metadata, pid);
	EXPECT_EQ(1, call(self->fd, CLIENT_CALLBACKS, NULL));
	EXPECT_EQ(-ENOENT, call(self->fd, CLIENT_PUT, NULL));
}

TEST_HARNESS_MAIN
