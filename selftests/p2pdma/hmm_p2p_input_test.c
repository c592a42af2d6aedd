// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the peer-to-peer DMA test devices: bad input gets a clear error, and
 * nothing changes
 *
 * The documentation of each call is in include/uapi/linux/p2ptest.h.
 */
#include "p2p_fixture.h"

#include <sys/ioctl.h>

TEST_F_TIMEOUT(p2p, bad_region, TIMEOUT_S)
{
	const int fd = self->nic.fd;
	struct p2ptest_nic_dereg dereg = { .handle = 1, .pad = 1 };
	struct p2ptest_nic_reg reg;
	struct p2p_buf buf;
	__u32 handle;
	char c;

	p2p_buf_init(_metadata, self, &buf, 1, BEFORE);
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, buf.p, 0, 0, &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, buf.p, ~0UL, 0, &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, (void *)~0UL, 2, 0,
				       &handle));
	EXPECT_EQ(-EINVAL, p2p_nic_reg(&self->nic, buf.p, 1, 1U << 31,
				       &handle));
	EXPECT_EQ(-E2BIG, p2p_nic_reg(&self->nic, buf.p, (1UL << 30) + 1, 0,
				      &handle));
	/* Kernel addresses: if they can be registered, it is of no use */
	if (!p2p_nic_reg(&self->nic, (void *)-8192L, P2P_PAGE, 0,
			 &handle)) {
		EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, handle,
						(void *)-8192L, &c, 1,
						NULL));
		EXPECT_EQ(0, p2p_nic_dereg(&self->nic, handle));
	}

	reg = (struct p2ptest_nic_reg){ .addr = (uintptr_t)buf.p, .len = 1 };
	EXPECT_EQ(-1, ioctl(fd, _IOWR(P2PTEST_NIC_IOC_MAGIC, 0, char), &reg));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, _IOWR(P2PTEST_NIC_IOC_MAGIC, 99,
				      struct p2ptest_nic_reg), &reg));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_INFO, &reg));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_REG, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_DEREG, &dereg));
	EXPECT_EQ(EINVAL, errno);

	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_free(_metadata, self, &buf);
}

/* Memory that does not exist yet may be registered: it is never pinned */
TEST_F_TIMEOUT(p2p, unmapped_region, TIMEOUT_S)
{
	struct p2p_buf buf = { .pages = 2, .len = 2 * P2P_PAGE };
	char c = 1;

	buf.p = p2p_alloc(buf.len);
	ASSERT_NE(NULL, buf.p);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p, buf.len,
				 P2PTEST_NIC_MR_WRITE, &buf.handle));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p, &c, 1,
					NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_write(&self->nic, buf.handle, buf.p, &c, 1,
					 NULL));
	ASSERT_EQ(buf.p, mmap(buf.p, buf.len, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

TEST_F_TIMEOUT(p2p, bad_transfer, TIMEOUT_S)
{
	const int fd = self->nic.fd;
	struct p2ptest_nic_query query;
	struct p2ptest_nic_page pages[4];
	struct p2ptest_nic_xfer xfer;
	struct p2p_buf buf;
	char data[64];
	__u32 inside;
	char *end;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	end = (char *)buf.p + buf.len;
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, buf.p, data, 0,
					NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, buf.p - 1,
					data, 2, NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, end - 1, data,
					2, NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, end, data, 1,
					NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, buf.p + 1,
					data, ~0UL, NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, buf.handle, (void *)~0UL,
					data, 2, NULL));
	/* A region ends where it ends, not with its last page */
	ASSERT_EQ(0, p2p_nic_reg(&self->nic, buf.p + 16, 32, 0, &inside));
	EXPECT_EQ(0, p2p_nic_read(&self->nic, inside, buf.p + 16, data, 32,
				  NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, inside, buf.p + 16, data,
					33, NULL));
	EXPECT_EQ(-EINVAL, p2p_nic_read(&self->nic, inside, buf.p + 15, data,
					2, NULL));
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, inside));
	/* The other buffer of a transfer is the caller's problem as well */
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p,
					(void *)1, 1, NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_write(&self->nic, buf.handle, buf.p,
					 (void *)1, 1, NULL));
	EXPECT_EQ(-EFAULT, p2p_nic_read(&self->nic, buf.handle, buf.p,
					(void *)-8192L, 1, NULL));

	xfer = (struct p2ptest_nic_xfer){
		.addr = (uintptr_t)buf.p, .len = 1, .buf = (uintptr_t)data,
		.handle = buf.handle, .flags = 1U << 31,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_XFER, &xfer));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_XFER, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, _IOWR(P2PTEST_NIC_IOC_MAGIC, 2, char[8]),
			    &xfer));
	EXPECT_EQ(ENOTTY, errno);

	EXPECT_EQ(-EINVAL, p2p_nic_query(&self->nic, buf.handle, buf.p, 0,
					 pages));
	EXPECT_EQ(-EINVAL, p2p_nic_query(&self->nic, buf.handle, end, 1,
					 pages));
	EXPECT_EQ(-EINVAL, p2p_nic_query(&self->nic, buf.handle, buf.p, ~0UL,
					 pages));
	EXPECT_EQ(-EFAULT, p2p_nic_query(&self->nic, buf.handle, buf.p,
					 buf.len, (void *)1));
	query = (struct p2ptest_nic_query){
		.addr = (uintptr_t)buf.p, .len = 1, .pages = (uintptr_t)pages,
		.handle = buf.handle, .pad = 1,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_QUERY, &query));
	EXPECT_EQ(EINVAL, errno);

	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	p2p_buf_free(_metadata, self, &buf);
}

TEST_F_TIMEOUT(p2p, bad_gpu, TIMEOUT_S)
{
	const int fd = self->gpu.fd;
	const __u64 size = self->info.vram_size;
	const __u64 chunk = self->info.chunk_size;
	struct p2ptest_gpu_migrate migrate;
	struct p2ptest_gpu_access access;
	struct p2ptest_gpu_info info;
	struct p2p_buf buf;
	__u64 locs[4];
	char data[64];
	__u32 two = 2;

	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p, 0));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p + 1, P2P_PAGE));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p, P2P_PAGE + 1));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_vram(&self->gpu, buf.p,
					   ~(P2P_PAGE - 1)));
	EXPECT_EQ(-EINVAL, p2p_gpu_to_host(&self->gpu, buf.p, 0));
	migrate = (struct p2ptest_gpu_migrate){
		.addr = (uintptr_t)buf.p, .len = P2P_PAGE, .dir = 2,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_MIGRATE, &migrate));
	EXPECT_EQ(EINVAL, errno);
	migrate.dir = P2PTEST_GPU_TO_VRAM;
	migrate.pad = 1;
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_MIGRATE, &migrate));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_MIGRATE, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_INFO, (void *)1));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_NIC_REG, &info));
	EXPECT_EQ(ENOTTY, errno);
	EXPECT_EQ(-1, ioctl(fd, _IOR(P2PTEST_GPU_IOC_MAGIC, 0, char), &info));
	EXPECT_EQ(ENOTTY, errno);

	EXPECT_EQ(-EINVAL, p2p_gpu_read(&self->gpu, buf.p, data, 0));
	EXPECT_EQ(-EINVAL, p2p_gpu_read(&self->gpu, buf.p, data, ~0UL));
	EXPECT_EQ(-EFAULT, p2p_gpu_read(&self->gpu, buf.p, (void *)1, 1));
	EXPECT_EQ(-EFAULT, p2p_gpu_write(&self->gpu, buf.p, (void *)1, 1));
	access = (struct p2ptest_gpu_access){
		.addr = (uintptr_t)buf.p, .len = 1, .buf = (uintptr_t)data,
		.flags = 1U << 31,
	};
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_ACCESS, &access));
	EXPECT_EQ(EINVAL, errno);
	access.flags = 0;
	access.pad = 1;
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_ACCESS, &access));
	EXPECT_EQ(EINVAL, errno);

	EXPECT_EQ(-EINVAL, p2p_gpu_lookup(&self->gpu, buf.p, 0, locs));
	EXPECT_EQ(-EINVAL, p2p_gpu_lookup(&self->gpu, buf.p + 1, P2P_PAGE,
					  locs));
	EXPECT_EQ(-EFAULT, p2p_gpu_lookup(&self->gpu, buf.p, P2P_PAGE,
					  (void *)1));
	/* So high that a batch of pages goes beyond the last address */
	EXPECT_EQ(-EFAULT, p2p_gpu_read(&self->gpu, (void *)-0x10000L, data,
					1));
	EXPECT_EQ(0, p2p_gpu_lookup(&self->gpu, (void *)-0x200000L, P2P_PAGE,
				    locs));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, 1, chunk));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, 0, 1));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, 0, size + chunk));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, size, chunk));
	EXPECT_EQ(-EINVAL, p2p_gpu_window(&self->gpu, ~(chunk - 1), chunk));
	EXPECT_EQ(-1, ioctl(fd, P2PTEST_GPU_INJECT_BAD_ALIAS, &two));
	EXPECT_EQ(EINVAL, errno);

	/* The window is not pulled away from under a page */
	p2p_buf_to_vram(_metadata, self, &buf);
	EXPECT_EQ(-EBUSY, p2p_gpu_window(&self->gpu, 0, 0));
	EXPECT_EQ(-EBUSY, p2p_gpu_window(&self->gpu, 0, size));

	/* Write protection holds for the GPU, too */
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
	EXPECT_EQ(-EPERM, p2p_gpu_write(&self->gpu, buf.p, data, 1));
	EXPECT_LE(0, p2p_gpu_read(&self->gpu, buf.p, data, 1));
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);

	ASSERT_EQ(0, munmap(buf.p, buf.len));
	EXPECT_EQ(-EFAULT, p2p_gpu_read(&self->gpu, buf.p, data, 1));
	EXPECT_EQ(-EFAULT, p2p_gpu_write(&self->gpu, buf.p, data, 1));
	EXPECT_EQ(-EFAULT, p2p_gpu_to_vram(&self->gpu, buf.p, buf.len));
	EXPECT_EQ(0, p2p_nic_dereg(&self->nic, buf.handle));
}

TEST_HARNESS_MAIN
