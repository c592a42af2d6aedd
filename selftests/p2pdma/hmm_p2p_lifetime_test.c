// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: processes and devices that
 * go away, idle or in the middle of a transfer
 *
 * Memory that a GPU holds belongs to the process: it survives the GPU's driver,
 * and it does not survive the process. An address that the NIC holds survives
 * neither. Nothing may be left behind; the fixture looks after that, too.
 */
#include "p2p_fixture.h"

/* One of two that use the same devices at the same time */
static void neighbour(struct __test_metadata *_metadata, __u64 seed)
{
	P2P_SELF own = { };
	struct p2p_buf buf;
	int i;

	own.path = P2P_EXPECT_UNKNOWN;
	ASSERT_EQ(0, p2p_gpu_open(&own.gpu, 0));
	ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
	p2p_buf_init(_metadata, &own, &buf, 16, seed);
	for (i = 0; i < 4; i++) {
		p2p_buf_to_vram(_metadata, &own, &buf);
		p2p_buf_nic_read(_metadata, &own, &buf, seed + i);
		p2p_buf_nic_write(_metadata, &own, &buf, seed + i + 1);
		p2p_buf_gpu_read(_metadata, &own, &buf, seed + i + 1,
				 p2p_gpu_resident(&own.gpu, buf.p, buf.len));
		p2p_buf_cpu_read(_metadata, &buf, seed + i + 1);
	}
	p2p_buf_free(_metadata, &own, &buf);
}

TEST_F_TIMEOUT(p2p, two_processes, TIMEOUT_S)
{
	pid_t pid[2];
	int i;

	for (i = 0; i < 2; i++) {
		pid[i] = p2p_fork_child(_metadata);
		if (!pid[i]) {
			neighbour(_metadata, 1000 * (i + 1));
			_exit(0);
		}
	}
	for (i = 0; i < 2; i++)
		p2p_wait_child(_metadata, pid[i]);
}

/* Register, move to VRAM, tell the parent, and be in a transfer when it ends */
static void victim(struct __test_metadata *_metadata, P2P_SELF *self,
		   int to_parent, bool transfer)
{
	/* The fixture's data is shared with the parent */
	P2P_SELF own = *self;
	struct p2p_buf buf;

	ASSERT_EQ(0, p2p_nic_open(&own.nic, 0));
	p2p_buf_init(_metadata, &own, &buf, LONG_PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, &own, &buf);
	p2p_buf_nic_read(_metadata, &own, &buf, BEFORE);
	ASSERT_EQ(1, write(to_parent, "", 1));
	if (transfer)
		p2p_buf_nic_write(_metadata, &own, &buf, AFTER);
}

TEST_F_TIMEOUT(p2p, killed, TIMEOUT_S)
{
	int to_parent[2];
	struct p2p_buf buf;
	pid_t pid;

	ASSERT_EQ(0, pipe(to_parent));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		victim(_metadata, self, to_parent[1], true);
		_exit(0);
	}
	p2p_hear(_metadata, to_parent);
	p2p_sleep_ms(MIDDLE_MS);
	if (p2p_peer_path(self->path))
		EXPECT_LE(LONG_PAGES,
			  p2p_info(_metadata, &self->gpu).pages_used);
	p2p_kill_child(_metadata, pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));

	/* The devices are as good as before */
	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* Exit without deregistering or closing anything */
TEST_F_TIMEOUT(p2p, exit, TIMEOUT_S)
{
	int to_parent[2];
	pid_t pid;

	ASSERT_EQ(0, pipe(to_parent));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		victim(_metadata, self, to_parent[1], false);
		_exit(0);
	}
	p2p_hear(_metadata, to_parent);
	p2p_wait_child(_metadata, pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
}

/* The file outlives the process whose regions it holds */
TEST_F_TIMEOUT(p2p, exit_shared_file, TIMEOUT_S)
{
	struct p2p_buf buf, *shared;
	pid_t pid;
	char c;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)shared);
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		p2p_buf_init(_metadata, self, shared, 8, BEFORE);
		p2p_buf_to_vram(_metadata, self, shared);
		p2p_buf_nic_write(_metadata, self, shared, AFTER);
		_exit(0);
	}
	p2p_wait_child(_metadata, pid);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	/* Its region is not for us, and there is no memory behind it */
	EXPECT_EQ(-EPERM, p2p_nic_read(&self->nic, shared->handle, shared->p,
				       &c, 1, NULL));
	p2p_buf_init(_metadata, self, &buf, 4, BEFORE);
	EXPECT_NE(shared->handle, buf.handle);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A closed file is closed, whatever was registered on it */
TEST_F_TIMEOUT(p2p, close, TIMEOUT_S)
{
	const int nic = self->nic.fd, gpu = self->gpu.fd;
	struct p2p_gpu closed = { .fd = gpu };
	struct p2ptest_gpu_info info;
	struct p2p_buf buf;
	char c;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_nic_close(&self->nic);
	EXPECT_EQ(-EBADF, p2p_nic_read(&(struct p2p_nic){ .fd = nic },
				       buf.handle, buf.p, &c, 1, NULL));
	p2p_gpu_close(&self->gpu);
	EXPECT_EQ(-EBADF, p2p_gpu_info(&closed, &info));
	/* Memory in VRAM is the process's, not the file's */
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

/* Devices */

FIXTURE(p2p_unbind)
{
	P2P_SELF p2p;
	char gpu[P2P_PCI_NAME];
	char nic[P2P_PCI_NAME];
};

FIXTURE_VARIANT(p2p_unbind)
{
	bool busy;	/* a transfer is in flight */
};

FIXTURE_VARIANT_ADD(p2p_unbind, idle) { false };
FIXTURE_VARIANT_ADD(p2p_unbind, busy) { true };

FIXTURE_SETUP(p2p_unbind)
{
	p2p_setup(_metadata, &self->p2p, NULL);
	if (self->p2p.nic.fd < 0)
		return;
	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, self->gpu));
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, self->nic));
}

FIXTURE_TEARDOWN_PARENT(p2p_unbind)
{
	/* Also if the test did not get that far */
	p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0);
	p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0);
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/* After the NIC was bound again, everything works as it did */
static void works_again(struct __test_metadata *_metadata, P2P_SELF *self)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;

	p2p_buf_init(_metadata, self, &buf, 8, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			p2p_path_reason(self->path), &before);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* The NIC goes away while regions are registered */
TEST_F_TIMEOUT(p2p_unbind, nic, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct p2ptest_nic_page page;
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = p2p };
	struct p2p_nic gone;
	struct p2p_buf buf;
	__u32 handle;
	char c = 0;

	p2p_buf_init(_metadata, p2p, &buf, LONG_PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	if (variant->busy)
		p2p_transfer_start(_metadata, &t, &buf, true);
	else
		p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->nic));
	if (variant->busy) {
		p2p_transfer_end(_metadata, &t);
		EXPECT_EQ(-ENODEV, t.ret);
		ASSERT_LT(t.xfer.done, buf.len - P2P_PAGE);
		p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0,
				   t.xfer.done);
		/* The chunk in flight may have arrived, or not */
		p2p_expect_pattern(_metadata, "rest",
				   buf.p + t.xfer.done + P2P_PAGE, BEFORE,
				   t.xfer.done + P2P_PAGE,
				   buf.len - t.xfer.done - P2P_PAGE);
	}

	EXPECT_EQ(-ENODEV, p2p_nic_read(&p2p->nic, buf.handle, buf.p, &c, 1,
					NULL));
	EXPECT_EQ(-ENODEV, p2p_nic_write(&p2p->nic, buf.handle, buf.p, &c, 1,
					 NULL));
	EXPECT_EQ(-ENODEV, p2p_nic_reg(&p2p->nic, buf.p, 1, 0, &handle));
	EXPECT_EQ(-ENODEV, p2p_nic_query(&p2p->nic, buf.handle, buf.p, 1,
					 &page));
	EXPECT_EQ(-ENODEV, p2p_nic_dereg(&p2p->nic, buf.handle));
	EXPECT_GT(0, p2p_nic_open(&gone, 0));

	/* Memory and GPU do not care */
	if (!variant->busy) {
		p2p_buf_gpu_read(_metadata, p2p, &buf, AFTER,
				 p2p_gpu_resident(&p2p->gpu, buf.p, buf.len));
		p2p_buf_cpu_read(_metadata, &buf, AFTER);
		p2p_buf_to_vram(_metadata, p2p, &buf);
	}
	EXPECT_EQ(0, munmap(buf.p, buf.len));

	/* Bound again while the old file is still open: it stays dead */
	ASSERT_EQ(0, p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0));
	EXPECT_EQ(-ENODEV, p2p_nic_reg(&p2p->nic, &c, 1, 0, &handle));
	p2p_nic_close(&p2p->nic);
	ASSERT_EQ(0, p2p_nic_open(&p2p->nic, 0));
	works_again(_metadata, p2p);
}

/* The GPU goes away while the NIC has its addresses */
TEST_F_TIMEOUT(p2p_unbind, gpu, TIMEOUT_S)
{
	int to_parent[2], to_child[2];
	P2P_SELF *p2p = &self->p2p;
	struct p2ptest_gpu_info info;
	struct p2p_transfer t = { .run = p2p_nic_transfer, .self = p2p };
	struct p2p_buf buf;
	struct p2p_gpu gone;
	pid_t pid;
	char c;

	/* Somebody who has nothing to do with it has memory there as well */
	ASSERT_EQ(0, pipe(to_parent));
	ASSERT_EQ(0, pipe(to_child));
	pid = p2p_fork_child(_metadata);
	if (!pid) {
		p2p_buf_init(_metadata, p2p, &buf, LONG_PAGES, OTHER);
		p2p_buf_to_vram(_metadata, p2p, &buf);
		ASSERT_EQ(1, write(to_parent[1], "", 1));
		ASSERT_EQ(1, read(to_child[0], &c, 1));
		p2p_buf_cpu_read(_metadata, &buf, OTHER);
		_exit(0);
	}
	p2p_hear(_metadata, to_parent);

	p2p_buf_init(_metadata, p2p, &buf, LONG_PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	if (variant->busy)
		p2p_transfer_start(_metadata, &t, &buf, true);
	else
		p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
	if (variant->busy) {
		p2p_transfer_end(_metadata, &t);
		EXPECT_EQ(0, t.ret);
	}

	EXPECT_EQ(-ENODEV, p2p_gpu_info(&p2p->gpu, &info));
	EXPECT_EQ(-ENODEV, p2p_gpu_to_vram(&p2p->gpu, buf.p, buf.len));
	EXPECT_EQ(-ENODEV, p2p_gpu_read(&p2p->gpu, buf.p, &c, 1));
	EXPECT_GT(0, p2p_gpu_open(&gone, 0));
	/* The NIC goes on with memory that came home, and then the CPU */
	p2p_buf_nic_read(_metadata, p2p, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_nic_write(_metadata, p2p, &buf, BEFORE);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	ASSERT_EQ(1, write(to_child[1], "", 1));
	p2p_wait_child(_metadata, pid);

	/* Bound again: the old region takes to the new addresses */
	ASSERT_EQ(0, p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0));
	EXPECT_EQ(-ENODEV, p2p_gpu_info(&p2p->gpu, &info));
	p2p_gpu_close(&p2p->gpu);
	ASSERT_EQ(0, p2p_gpu_open(&p2p->gpu, 0));
	ASSERT_EQ(0, p2p_gpu_window(&p2p->gpu, 0, p2p->info.vram_size));
	p2p_buf_to_vram(_metadata, p2p, &buf);
	info = p2p_info(_metadata, &p2p->gpu);
	p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	p2p_buf_reached(_metadata, p2p, &buf, buf.pages,
			p2p_path_reason(p2p->path), &info);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, p2p, &buf);
	works_again(_metadata, p2p);
}

TEST_HARNESS_MAIN
