// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: permissions, and an address
 * space that changes between two transfers
 *
 * The NIC may do what the process may do, and sees what the process sees. That
 * must not depend on where the memory is, or was when the NIC looked last. What
 * changes during a transfer is in hmm_p2p_race_test.c.
 */
#include "p2p_fixture.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <linux/memfd.h>

/* Permission */

/* The NIC may read what the process may read, and that in place */
TEST_F_TIMEOUT(p2p, mprotect_read, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_gpu_info before;
	struct p2ptest_nic_xfer xfer;
	unsigned char data[4 * 4096];
	struct p2p_view view;
	struct p2p_buf buf;
	int i;

	p2p_fill(data, AFTER, 0, sizeof(data));
	/* The NIC has, or has not, a writable address when the right is lost */
	for (i = 0; i < 2; i++) {
		p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
		p2p_buf_to_vram(_metadata, self, &buf);
		before = p2p_info(_metadata, &self->gpu);
		if (i)
			p2p_buf_nic_write(_metadata, self, &buf, BEFORE);
		ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
		EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, buf.handle, buf.p,
						data, buf.len, &xfer));
		EXPECT_EQ(0U, xfer.done);
		p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
		ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p,
					  buf.len, &view));
		EXPECT_EQ(0U, view.writable);
		if (p2p_peer_path(self->path)) {
			EXPECT_EQ(buf.pages, view.peer);
			EXPECT_EQ(buf.pages, view.reason[reason]);
			EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));
		}
		p2p_buf_cpu_read(_metadata, &buf, BEFORE);

		/* A part of the range: what comes before it is written */
		ASSERT_EQ(0, mprotect(buf.p, 2 * P2P_PAGE,
				      PROT_READ | PROT_WRITE));
		EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, buf.handle, buf.p,
						data, buf.len, &xfer));
		EXPECT_LE(xfer.done, 2 * P2P_PAGE);
		p2p_expect_pattern(_metadata, "written", buf.p, AFTER, 0,
				   xfer.done);
		p2p_expect_pattern(_metadata, "protected",
				   buf.p + 2 * P2P_PAGE, BEFORE, 2 * P2P_PAGE,
				   2 * P2P_PAGE);

		ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ | PROT_WRITE));
		p2p_buf_nic_write(_metadata, self, &buf, OTHER);
		p2p_buf_cpu_read(_metadata, &buf, OTHER);
		p2p_buf_free(_metadata, self, &buf);
	}
}

TEST_F_TIMEOUT(p2p, mprotect_none, TIMEOUT_S)
{
	unsigned char data[2 * 4096];
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, 2, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_NONE));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, data,
					buf.len, NULL));
	EXPECT_GT(0, p2p_nic_write(&self->nic, buf.handle, buf.p, data,
				   buf.len, NULL));
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ | PROT_WRITE));
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A region that was registered for reading, of memory that may be written */
TEST_F_TIMEOUT(p2p, region_read_only, TIMEOUT_S)
{
	struct p2ptest_nic_xfer xfer;
	unsigned char data[2 * 4096];
	struct p2p_buf buf;
	__u32 handle;

	p2p_buf_init(_metadata, self, &buf, 2, BEFORE);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len, 0, &handle));
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_fill(data, AFTER, 0, sizeof(data));
	EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, handle, buf.p, data,
					buf.len, &xfer));
	EXPECT_EQ(0U, xfer.done);
	EXPECT_EQ(0, p2p_nic_read(&self->nic, handle, buf.p, data, buf.len,
				  NULL));
	p2p_expect_pattern(_metadata, "NIC read", data, BEFORE, 0, buf.len);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, handle));
	p2p_buf_free(_metadata, self, &buf);
}

/* Another process: a region, and its number, are of no use to it */
static void intruder(struct __test_metadata *_metadata, P2P_SELF *self,
		     struct p2p_buf *buf)
{
	unsigned char data[2 * 4096];
	struct p2ptest_nic_page pages[2];
	struct p2ptest_nic_xfer xfer;
	struct p2p_nic own;
	__u32 handle;

	p2p_fill(data, OTHER, 0, sizeof(data));
	EXPECT_EQ(-EPERM, p2p_nic_read(&self->nic, buf->handle, buf->p, data,
				       buf->len, &xfer));
	EXPECT_EQ(0U, xfer.done);
	p2p_expect_pattern(_metadata, "nothing", data, OTHER, 0, sizeof(data));
	EXPECT_EQ(-EPERM, p2p_nic_write(&self->nic, buf->handle, buf->p, data,
					buf->len, &xfer));
	EXPECT_EQ(0U, xfer.done);
	EXPECT_EQ(-EPERM, p2p_nic_query(&self->nic, buf->handle, buf->p,
					buf->len, pages));
	EXPECT_EQ(-EPERM, p2p_nic_dereg(&self->nic, buf->handle));

	ASSERT_EQ(0, p2p_nic_open(&own, 0));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&own, buf->handle, buf->p, data,
					buf->len, NULL));
	/* The parent unmapped this: a child that registers it has none either */
	EXPECT_EQ(0, p2p_nic_reg(&own, buf->p + buf->len, P2P_PAGE, 0,
				 &handle));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&own, handle, buf->p + buf->len, data,
					1, NULL));
	p2p_nic_close(&own);
}

TEST_F_TIMEOUT(p2p, second_process, TIMEOUT_S)
{
	struct p2p_buf buf;
	pid_t pid;

	p2p_buf_init(_metadata, self, &buf, 3, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, munmap(buf.p + 2 * P2P_PAGE, P2P_PAGE));
	buf.len = 2 * P2P_PAGE;
	buf.pages = 2;
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		intruder(_metadata, self, &buf);
		_exit(0);
	}
	p2p_wait_child(_metadata, pid);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A number names a region on the file that it was registered on */
TEST_F_TIMEOUT(p2p, handles, TIMEOUT_S)
{
	struct p2ptest_nic_page page;
	struct p2p_nic second;
	struct p2p_buf buf;
	char c;

	p2p_buf_init(_metadata, self, &buf, 1, BEFORE);
	ASSERT_EQ(0, p2p_nic_open(&second, 0));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&second, buf.handle, buf.p, &c, 1,
					NULL));
	EXPECT_EQ(-ENOENT, p2p_nic_query(&second, buf.handle, buf.p, 1, &page));
	EXPECT_EQ(-ENOENT, p2p_nic_dereg(&second, buf.handle));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&self->nic, buf.handle + 1000, buf.p,
					&c, 1, NULL));
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
	EXPECT_EQ(-ENOENT, p2p_nic_dereg(&self->nic, buf.handle));
	EXPECT_EQ(-ENOENT, p2p_nic_read(&self->nic, buf.handle, buf.p, &c, 1,
					NULL));
	p2p_nic_close(&second);
	munmap(buf.p, buf.len);
}

/* The address space changes */

/* After unmap and remap the NIC sees the new memory, and never the old */
TEST_F_TIMEOUT(p2p, remap, TIMEOUT_S)
{
	struct p2p_buf buf, reuse;
	unsigned char data[4 * 4096];
	size_t used;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	/* Before the address of the other one is free to be given out */
	p2p_buf_init(_metadata, self, &reuse, 64, OTHER);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	used = p2p_gpu_resident(&self->gpu, buf.p, buf.len);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0))
		TH_LOG("%zu pages were used", used);
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, data,
					buf.len, NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_write(&self->nic, buf.handle, buf.p, data,
					 buf.len, NULL));

	/* Somebody else gets the old pages of VRAM, and has to keep them */
	p2p_buf_to_vram(_metadata, self, &reuse);
	ASSERT_EQ(buf.p, mmap(buf.p, buf.len, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	p2p_buf_nic_write(_metadata, self, &buf, BEFORE + 1);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE + 1);
	p2p_fill(buf.p, BEFORE + 2, 0, buf.len);
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE + 2);
	p2p_buf_gpu_read(_metadata, self, &reuse, OTHER, reuse.pages);
	p2p_buf_cpu_read(_metadata, &reuse, OTHER);
	p2p_buf_free(_metadata, self, &reuse);
	p2p_buf_free(_metadata, self, &buf);
}

/* MADV_DONTNEED: the old contents are gone for the NIC as well */
TEST_F_TIMEOUT(p2p, dontneed, TIMEOUT_S)
{
	unsigned char data[2 * 4096];
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, 2, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  NULL));
	EXPECT_EQ(buf.len, p2p_compare_byte(data, 0, buf.len));
	p2p_buf_nic_write(_metadata, self, &buf, OTHER);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	p2p_buf_free(_metadata, self, &buf);
}

/* mremap() moves the entries, not the pages: the new address is as good */
TEST_F_TIMEOUT(p2p, mremap, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	unsigned char *to;
	__u32 old;
	char c;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	to = p2p_alloc(buf.len);
	ASSERT_NE(NULL, to);
	ASSERT_EQ(to, mremap(buf.p, buf.len, buf.len,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, &c, 1,
					NULL));
	old = buf.handle;
	buf.p = to;
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			p2p_path_reason(self->path), &before);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, old));
	p2p_buf_free(_metadata, self, &buf);
}

/* Pages that were never touched are zero, and do not show old VRAM content */
TEST_F_TIMEOUT(p2p, hole, TIMEOUT_S)
{
	unsigned char data[8 * 4096];
	struct p2p_buf buf;
	size_t i;
	long n;

	/* Leave something in VRAM that must not be seen */
	p2p_buf_init(_metadata, self, &buf, 64, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_free(_metadata, self, &buf);

	/* Pages 0 to 3 are holes, 4 to 7 are the zero page */
	buf.pages = 8;
	buf.len = buf.pages * P2P_PAGE;
	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	EXPECT_EQ(4 * P2P_PAGE,
		  p2p_compare_byte(buf.p + 4 * P2P_PAGE, 0, 4 * P2P_PAGE));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	n = p2p_gpu_to_vram(&self->gpu, buf.p, buf.len);
	EXPECT_LT(0, n);
	EXPECT_EQ(n, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	memset(data, 1, sizeof(data));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  NULL));
	EXPECT_EQ(buf.len, p2p_compare_byte(data, 0, buf.len));

	/* A write of page 1 and of page 5 does not show in others */
	p2p_fill(data, AFTER, 0, P2P_PAGE);
	for (i = 1; i < 8; i += 4)
		EXPECT_EQ(0, p2p_nic_write(&self->nic, buf.handle,
					   buf.p + i * P2P_PAGE, data,
					   P2P_PAGE, NULL));
	for (i = 0; i < 8; i++) {
		if (i % 4 == 1)
			p2p_expect_pattern(_metadata, "page",
					   buf.p + i * P2P_PAGE, AFTER, 0,
					   P2P_PAGE);
		else
			EXPECT_EQ(P2P_PAGE,
				  p2p_compare_byte(buf.p + i * P2P_PAGE, 0,
						   P2P_PAGE));
	}
	p2p_buf_free(_metadata, self, &buf);
}

/* Holes that the NIC itself fills, without a GPU in sight */
TEST_F_TIMEOUT(p2p, hole_ram, TIMEOUT_S)
{
	unsigned char data[2 * 4096];
	struct p2p_buf buf = { .pages = 2, .len = 2 * P2P_PAGE };

	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	memset(data, 1, sizeof(data));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  NULL));
	EXPECT_EQ(buf.len, p2p_compare_byte(data, 0, buf.len));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* Maps as many pages of a new file, which lives as long as the mapping */
static void map_file(struct __test_metadata *_metadata, struct p2p_buf *buf,
		     int fd, size_t pages)
{
	*buf = (struct p2p_buf){ .pages = pages, .len = pages * P2P_PAGE };
	ASSERT_EQ(0, ftruncate(fd, buf->len));
	buf->p = mmap(NULL, buf->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, (void *)buf->p);
	close(fd);
	p2p_fill(buf->p, BEFORE, 0, buf->len);
}

/* Memory of a file cannot go to the GPU, but the NIC reaches it */
TEST_F_TIMEOUT(p2p, shared_file, TIMEOUT_S)
{
	int fd = memfd_create("p2pdma", MFD_CLOEXEC);
	struct p2p_buf buf;

	if (fd < 0)
		SKIP(return, "no memfd");
	map_file(_metadata, &buf, fd, 4);
	EXPECT_EQ(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* Memory that the CPU has no mapping of but the process's own */
TEST_F_TIMEOUT(p2p, secret, TIMEOUT_S)
{
	int fd = syscall(__NR_memfd_secret, 0);
	unsigned char data[2 * 4096] = {};
	struct p2p_buf buf;

	if (fd < 0)
		SKIP(return, "no memfd_secret()");
	map_file(_metadata, &buf, fd, 2);
	EXPECT_EQ(0, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	EXPECT_EQ(-EFAULT, p2p_gpu_read(&self->gpu, buf.p, data, buf.len));
	EXPECT_EQ(-EFAULT, p2p_gpu_write(&self->gpu, buf.p, data, buf.len));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
}

/*
 * After MADV_FREE the kernel may drop a page until something is written to it.
 * The CPU would notice by the dirty bit; devices do not set it. That a page was in
 * VRAM makes no difference.
 */
TEST_F_TIMEOUT(p2p, lazyfree, TIMEOUT_S)
{
	unsigned char data[4 * 4096];
	struct p2p_buf buf;
	int i;

	p2p_fill(data, AFTER, 0, sizeof(data));
	for (i = 0; i < 4; i++) {
		bool gpu = i % 2, vram = i / 2;

		p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
		ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_FREE));
		if (vram)
			p2p_buf_to_vram(_metadata, self, &buf);
		if (gpu) {
			EXPECT_EQ(vram ? 4 : 0,
				  p2p_gpu_write(&self->gpu, buf.p, data,
						buf.len));
		} else {
			p2p_buf_nic_write(_metadata, self, &buf, AFTER);
		}
		ASSERT_LE(0, p2p_gpu_to_host(&self->gpu, buf.p, buf.len));
		ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_PAGEOUT));
		p2p_buf_cpu_read(_metadata, &buf, AFTER);
		p2p_buf_free(_metadata, self, &buf);
	}
}

/* Freed VRAM holds nobody's data any more */
TEST_F_TIMEOUT(p2p, poison, TIMEOUT_S)
{
	const unsigned char *vram;
	__u64 locs[16];
	struct p2p_buf buf;
	size_t i, len;

	vram = p2p_vram_map(self->gpu.id, &len);
	if (!vram)
		SKIP(return, "the kernel does not show the BAR");
	p2p_buf_init(_metadata, self, &buf, ARRAY_SIZE(locs), BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, buf.p, buf.len, locs));
	p2p_vram_pattern(_metadata, self, locs, buf.pages, BEFORE);
	/* Half of them go home, the other half are thrown away */
	ASSERT_EQ(8, p2p_gpu_to_host(&self->gpu, buf.p, 8 * P2P_PAGE));
	p2p_expect_pattern(_metadata, "home", buf.p, BEFORE, 0, 8 * P2P_PAGE);
	p2p_buf_free(_metadata, self, &buf);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	for (i = 0; i < ARRAY_SIZE(locs); i++)
		EXPECT_EQ(P2P_PAGE,
			  p2p_compare_byte(vram + p2p_loc_offset(locs[i]),
					   P2PTEST_GPU_POISON, P2P_PAGE));
	munmap((void *)vram, len);
}

/* Copy on write */

enum writer { BY_CPU, BY_NIC, BY_GPU };

FIXTURE(p2p_cow)
{
	P2P_SELF p2p;
};

FIXTURE_VARIANT(p2p_cow)
{
	enum writer writer;
	bool child;	/* writes */
	bool mapped;	/* the NIC had a writable address before the fork */
};

FIXTURE_VARIANT_ADD(p2p_cow, parent_cpu) { BY_CPU, false, true };
FIXTURE_VARIANT_ADD(p2p_cow, parent_nic) { BY_NIC, false, false };
FIXTURE_VARIANT_ADD(p2p_cow, parent_nic_mapped) { BY_NIC, false, true };
FIXTURE_VARIANT_ADD(p2p_cow, parent_gpu) { BY_GPU, false, true };
FIXTURE_VARIANT_ADD(p2p_cow, child_cpu) { BY_CPU, true, true };
FIXTURE_VARIANT_ADD(p2p_cow, child_nic) { BY_NIC, true, true };
FIXTURE_VARIANT_ADD(p2p_cow, child_gpu) { BY_GPU, true, true };

FIXTURE_SETUP(p2p_cow)
{
	p2p_setup(_metadata, &self->p2p, NULL);
}

FIXTURE_TEARDOWN_PARENT(p2p_cow)
{
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/* One of the two writes, by whatever it takes */
static void cow_write(struct __test_metadata *_metadata, P2P_SELF *self,
		      enum writer writer, const struct p2p_buf *buf)
{
	void *data = malloc(buf->len);
	struct p2p_nic nic;
	__u32 handle;

	ASSERT_NE(NULL, data);
	p2p_fill(data, AFTER, 0, buf->len);
	switch (writer) {
	case BY_CPU:
		memcpy(buf->p, data, buf->len);
		break;
	case BY_GPU:
		EXPECT_LE(0, p2p_gpu_write(&self->gpu, buf->p, data, buf->len));
		break;
	case BY_NIC:
		/* A file and a region of its own, also in the child */
		ASSERT_EQ(0, p2p_nic_open(&nic, 0));
		ASSERT_EQ(0, p2p_nic_reg(&nic, buf->p, buf->len,
					 P2PTEST_NIC_MR_WRITE, &handle));
		EXPECT_EQ(0, p2p_nic_write(&nic, handle, buf->p, data, buf->len,
					   NULL));
		p2p_nic_close(&nic);
		break;
	}
	free(data);
}

static void expect_child(struct __test_metadata *_metadata, P2P_SELF *self,
			 const struct p2p_buf *buf, __u64 seed)
{
	void *data = malloc(buf->len);
	struct p2p_nic nic;
	__u32 handle;

	/* By NIC first: the CPU brings pages home */
	ASSERT_NE(NULL, data);
	ASSERT_EQ(0, p2p_nic_open(&nic, 0));
	ASSERT_EQ(0, p2p_nic_reg(&nic, buf->p, buf->len, 0, &handle));
	EXPECT_EQ(0, p2p_nic_read(&nic, handle, buf->p, data, buf->len, NULL));
	p2p_expect_pattern(_metadata, "child's NIC read", data, seed, 0,
			   buf->len);
	EXPECT_LE(0, p2p_gpu_read(&self->gpu, buf->p, data, buf->len));
	p2p_expect_pattern(_metadata, "child's GPU read", data, seed, 0,
			   buf->len);
	p2p_expect_pattern(_metadata, "child's CPU read", buf->p, seed, 0,
			   buf->len);
	p2p_nic_close(&nic);
	free(data);
}

/* Whoever writes, the other one keeps what was there at the fork */
TEST_F_TIMEOUT(p2p_cow, keeps, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;
	int to_child[2];
	pid_t pid;
	char c;

	p2p_buf_init(_metadata, p2p, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	if (variant->mapped)
		p2p_buf_nic_write(_metadata, p2p, &buf, BEFORE);
	ASSERT_EQ(0, pipe(to_child));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		if (variant->child)
			cow_write(_metadata, p2p, variant->writer, &buf);
		else
			ASSERT_EQ(1, read(to_child[0], &c, 1));
		expect_child(_metadata, p2p, &buf,
			     variant->child ? AFTER : BEFORE);
		_exit(0);
	}
	if (!variant->child) {
		cow_write(_metadata, p2p, variant->writer, &buf);
		ASSERT_EQ(1, write(to_child[1], "", 1));
	}
	p2p_wait_child(_metadata, pid);
	p2p_buf_nic_read(_metadata, p2p, &buf,
			 variant->child ? BEFORE : AFTER);
	p2p_buf_cpu_read(_metadata, &buf, variant->child ? BEFORE : AFTER);

	/* And the region is as good as before */
	p2p_buf_nic_write(_metadata, p2p, &buf, OTHER);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	p2p_buf_free(_metadata, p2p, &buf);
}

/* Reading what is shared after a fork needs no copy and no way home */
TEST_F_TIMEOUT(p2p, fork_read, TIMEOUT_S)
{
	const int reason = p2p_path_reason(self->path);
	struct p2ptest_gpu_info before;
	struct p2p_view view;
	struct p2p_buf buf;
	int to_child[2];
	pid_t pid;
	char c;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, pipe(to_child));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		expect_child(_metadata, self, &buf, BEFORE);
		_exit(0);
	}
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_reached(_metadata, self, &buf, buf.pages, reason, &before);
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	if (p2p_peer_path(self->path))
		EXPECT_EQ(0U, view.writable);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);
	p2p_buf_free(_metadata, self, &buf);
}

/* Without a huge page in host memory, pages of one come home each by itself */
TEST_F_TIMEOUT(p2p, no_huge_page, TIMEOUT_S)
{
	const size_t first = 100 * P2P_PAGE;
	struct p2p_buf buf;

	if (!p2p_buf_init_huge(_metadata, self, &buf, BEFORE))
		return;
	p2p_buf_to_vram(_metadata, self, &buf);
	if (!p2p_huge_pages_fail(_metadata, true))
		return;
	p2p_expect_pattern(_metadata, "first", buf.p + first, BEFORE, first,
			   P2P_PAGE);
	EXPECT_EQ((long)buf.pages - 1,
		  p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	p2p_expect_pattern(_metadata, "all", buf.p, BEFORE, 0, buf.len);
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	p2p_huge_pages_fail(_metadata, false);
	p2p_buf_free(_metadata, self, &buf);
}

/* The same if the GPU brings all of them home */
TEST_F_TIMEOUT(p2p, no_huge_page_by_gpu, TIMEOUT_S)
{
	struct p2p_buf buf;

	if (!p2p_buf_init_huge(_metadata, self, &buf, BEFORE))
		return;
	p2p_buf_to_vram(_metadata, self, &buf);
	if (!p2p_huge_pages_fail(_metadata, true))
		return;
	EXPECT_LE(0, p2p_gpu_to_host(&self->gpu, buf.p, buf.len));
	p2p_huge_pages_fail(_metadata, false);
	EXPECT_EQ(0, p2p_gpu_resident(&self->gpu, buf.p, buf.len));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	p2p_buf_free(_metadata, self, &buf);
}

TEST_HARNESS_MAIN
