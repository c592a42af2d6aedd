// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the RDMA core's on-demand paging with peer-to-peer DMA: each allocation
 * fails once
 *
 * The same as hmm_p2p_nomem_test.c with the test RDMA device.
 */
#include "p2p_rdma.h"
#include "p2p_nomem.h"

FIXTURE(odp_nomem)
{
	RDMA_SELF odp;
	struct nomem nomem;
	char name[P2P_PCI_NAME];
};

#define SELF FIXTURE_DATA(odp_nomem)

FIXTURE_SETUP(odp_nomem)
{
	self->odp.fd = -1;
	if (!nomem_open(_metadata, &self->nomem))
		return;
	odp_setup(_metadata, &self->odp, NULL);
	if (self->odp.fd < 0)
		return;
	ASSERT_EQ(0, p2p_pci_name(RDMA_DRIVER, 0, self->name));
}

FIXTURE_TEARDOWN_PARENT(odp_nomem)
{
	if (self->odp.fd < 0)
		return;
	p2p_pci_bind(RDMA_DRIVER, self->name, 0);
	odp_teardown(_metadata, &self->odp, NULL);
}

static void buf_end(struct __test_metadata *_metadata, RDMA_SELF *odp,
		    struct p2p_buf *buf, __u64 seed)
{
	p2p_buf_cpu_read(_metadata, buf, seed);
	rdma_buf_free(_metadata, odp, buf);
}

/* Regions of each kind */
TEST_F_TIMEOUT(odp_nomem, regions, TIMEOUT_S)
{
	static const struct {
		const char *name;
		__u32 flags;
	} kinds[] = {
		{ "pinned", MR_WRITE },
		{ "on demand", MR_ODP_WRITE },
		{ "implicit", MR_ODP_WRITE | P2PTEST_RDMA_MR_IMPLICIT },
	};
	struct nomem *nomem = &self->nomem;
	RDMA_SELF *odp = &self->odp;
	struct p2p_buf buf;
	__u32 handle;
	size_t i;
	int fd;

	for_each_allocation(nomem, "open") {
		NOMEM_CALL(nomem, fd, p2p_dev_open(RDMA_DRIVER, 0));
		if (fd >= 0)
			close(fd);
	}
	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		for_each_allocation(nomem, kinds[i].name) {
			int ret;

			rdma_buf_init(_metadata, odp, &buf, SOME, BEFORE, MR_ODP);
			rdma_buf_to_vram(_metadata, odp, &buf);
			NOMEM_CALL(nomem, ret,
				   rdma_reg(odp->fd, buf.p, buf.len,
					    kinds[i].flags, &handle));
			if (!ret)
				EXPECT_EQ(0, rdma_dereg(odp->fd, handle));
			buf_end(_metadata, odp, &buf, BEFORE);
		}
	}
	EXPECT_LT(20U, nomem->failed);
}

static void fault_step(struct __test_metadata *_metadata, SELF *self,
		       const char *name, bool huge, bool vram, __u32 mr)
{
	struct nomem *nomem = &self->nomem;
	RDMA_SELF *odp = &self->odp;
	struct p2p_buf buf;
	int ret;

	for_each_allocation(nomem, name) {
		if (huge) {
			if (!p2p_buf_alloc_huge(_metadata, &buf, BEFORE))
				return;
		} else {
			p2p_buf_alloc(_metadata, &buf, SOME, BEFORE);
		}
		ASSERT_EQ(0, rdma_reg(odp->fd, buf.p, buf.len, mr, &buf.handle));
		if (vram)
			rdma_buf_to_vram(_metadata, odp, &buf);
		else if (!huge)
			ASSERT_EQ(0, madvise(buf.p, buf.len / 2, MADV_DONTNEED));
		NOMEM_CALL_OR(nomem, ret, vram ? -ENOMEM : NOMEM_NOT_MAPPED,
			      rdma_fault(odp->fd, buf.handle, buf.p, buf.len,
					 P2PTEST_RDMA_FAULT_WRITE));
		ASSERT_EQ(0, rdma_fault(odp->fd, buf.handle, buf.p, buf.len,
					P2PTEST_RDMA_FAULT_WRITE));
		if (!vram && !huge)
			p2p_fill(buf.p, BEFORE, 0, buf.len / 2);
		buf_end(_metadata, odp, &buf, BEFORE);
	}
}

/* Page faults of the device, and the mapping of what they find */
TEST_F_TIMEOUT(odp_nomem, faults, TIMEOUT_S)
{
	const __u32 implicit = MR_ODP_WRITE | P2PTEST_RDMA_MR_IMPLICIT;

	fault_step(_metadata, self, "host memory", false, false, MR_ODP_WRITE);
	fault_step(_metadata, self, "VRAM", false, true, MR_ODP_WRITE);
	fault_step(_metadata, self, "VRAM, implicit", false, true, implicit);
	fault_step(_metadata, self, "huge, host memory", true, false, MR_ODP_WRITE);
	fault_step(_metadata, self, "huge, VRAM", true, true, MR_ODP_WRITE);
	/* A region with atomics brings pages home */
	fault_step(_metadata, self, "home", false, true,
		   MR_ODP_WRITE | P2PTEST_RDMA_MR_ATOMIC);
	fault_step(_metadata, self, "huge, home", true, true,
		   MR_ODP_WRITE | P2PTEST_RDMA_MR_ATOMIC);
	EXPECT_LT(20U, self->nomem.failed);
}

static void transfer_step(struct __test_metadata *_metadata, SELF *self,
			  const char *name, bool vram, __u32 mr)
{
	unsigned char *data = malloc(FEW * P2P_PAGE);
	struct nomem *nomem = &self->nomem;
	RDMA_SELF *odp = &self->odp;
	struct p2p_buf buf;
	int ret;

	ASSERT_NE(NULL, data);
	p2p_fill(data, AFTER, 0, FEW * P2P_PAGE);
	for_each_allocation(nomem, name) {
		rdma_buf_init(_metadata, odp, &buf, FEW, BEFORE, mr);
		if (vram)
			rdma_buf_to_vram(_metadata, odp, &buf);
		NOMEM_CALL_OR(nomem, ret, vram ? -ENOMEM : NOMEM_NOT_MAPPED,
			      rdma_xfer(odp->fd, buf.handle, buf.p, data, buf.len,
					true, NULL));
		if (ret < 0)
			nomem_either(_metadata, &buf, BEFORE, AFTER);
		rdma_buf_write(_metadata, odp, &buf, AFTER);
		buf_end(_metadata, odp, &buf, AFTER);
	}
	free(data);
}

/* DMA, and what else there is to do to a region */
TEST_F_TIMEOUT(odp_nomem, transfers, TIMEOUT_S)
{
	struct p2ptest_rdma_page pages[FEW];
	struct nomem *nomem = &self->nomem;
	RDMA_SELF *odp = &self->odp;
	struct p2p_buf buf;
	int ret;

	transfer_step(_metadata, self, "write, pinned", false, MR_WRITE);
	transfer_step(_metadata, self, "write to host memory", false, MR_ODP_WRITE);
	transfer_step(_metadata, self, "write to VRAM", true, MR_ODP_WRITE);
	transfer_step(_metadata, self, "write, implicit", true,
		      MR_ODP_WRITE | P2PTEST_RDMA_MR_IMPLICIT);
	for_each_allocation(nomem, "query") {
		rdma_buf_init(_metadata, odp, &buf, FEW, BEFORE, MR_ODP_WRITE);
		NOMEM_CALL(nomem, ret,
			   rdma_query(odp->fd, buf.handle, buf.p, buf.len, pages,
				      NULL));
		buf_end(_metadata, odp, &buf, BEFORE);
	}
	for_each_allocation(nomem, "more access") {
		rdma_buf_init(_metadata, odp, &buf, FEW, BEFORE, MR_ODP_WRITE);
		rdma_buf_to_vram(_metadata, odp, &buf);
		ASSERT_EQ(0, rdma_fault(odp->fd, buf.handle, buf.p, buf.len, 0));
		NOMEM_CALL(nomem, ret,
			   rdma_rereg(odp->fd, buf.handle, P2PTEST_RDMA_MR_ATOMIC));
		buf_end(_metadata, odp, &buf, BEFORE);
	}
	EXPECT_LT(10U, nomem->failed);
}

/* The driver does not get its device, but will */
TEST_F_TIMEOUT(odp_nomem, device_comes, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	RDMA_SELF *odp = &self->odp;
	struct p2p_buf buf;
	int ret;

	for_each_allocation(nomem, "RDMA device binds") {
		close(odp->fd);
		ASSERT_EQ(0, p2p_pci_unbind(RDMA_DRIVER, self->name));
		NOMEM_CALL_OR(nomem, ret, NOMEM_NO_REGION,
			      p2p_pci_bind(RDMA_DRIVER, self->name, -1));
		if (ret)
			ASSERT_EQ(0, p2p_pci_bind(RDMA_DRIVER, self->name, 0));
		while ((odp->fd = p2p_dev_open(RDMA_DRIVER, 0)) < 0)
			p2p_sleep_ms(20);
	}
	rdma_buf_init(_metadata, odp, &buf, FEW, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, odp, &buf);
	rdma_buf_write(_metadata, odp, &buf, AFTER);
	buf_end(_metadata, odp, &buf, AFTER);
	EXPECT_LT(20U, nomem->failed);
}

TEST_HARNESS_MAIN
