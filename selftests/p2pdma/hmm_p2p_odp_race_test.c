// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the RDMA core's on-demand paging with peer-to-peer DMA: what changes
 * while DMA runs
 *
 * An address that the device was given is good until the notifier says
 * otherwise. Here mappings change, pages move and the device goes away while
 * transfers are in flight. Nothing may be lost, and nothing may reach memory
 * that belongs to somebody else by now.
 */
#include "p2p_rdma.h"

static void *rdma_transfer(void *arg)
{
	struct p2p_transfer *t = arg;
	RDMA_SELF *self = t->self;
	struct p2ptest_rdma_xfer xfer;

	t->ret = rdma_xfer(self->fd, t->buf->handle, t->buf->p, t->data,
			   t->buf->len, t->write, &xfer);
	t->xfer.done = xfer.done;
	t->xfer.faults = xfer.faults;
	return NULL;
}

/*
 * The NIC does not write to unmapped pages, and their VRAM may be reused. In
 * particular not to the page that DMA is in flight to when it is unmapped.
 */
TEST_F_TIMEOUT(odp, unmap, TIMEOUT_S)
{
	struct p2p_buf buf, reuse;
	struct p2p_transfer t = { .run = rdma_transfer, .self = self };

	rdma_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_init(_metadata, self, &reuse, LONG_PAGES, OTHER,
		      MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	ASSERT_EQ(0, munmap(buf.p, buf.len));
	/* These take the place of the unmapped ones */
	rdma_buf_to_vram(_metadata, self, &reuse);
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(-EFAULT, t.ret);
	EXPECT_LT(0U, t.xfer.done);
	EXPECT_GT(buf.len, t.xfer.done);

	rdma_buf_read(_metadata, self, &reuse, OTHER);
	p2p_buf_cpu_read(_metadata, &reuse, OTHER);
	rdma_buf_free(_metadata, self, &reuse);
	EXPECT_EQ(0, rdma_dereg(self->fd, buf.handle));
}

/* New memory at an old address gets what is written from now on */
TEST_F_TIMEOUT(odp, remap, TIMEOUT_S)
{
	const size_t hole = 32 * P2P_PAGE, hole_len = 16 * P2P_PAGE;
	struct p2p_transfer t = { .run = rdma_transfer, .self = self };
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	ASSERT_EQ(buf.p + hole,
		  mmap(buf.p + hole, hole_len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, self, &buf);
}

/*
 * Pages that the device has the addresses of, and has not got to, move: it faults
 * them again when it does, and completes.
 */
TEST_F_TIMEOUT(odp, moved, TIMEOUT_S)
{
	const size_t first = 48, nr = LONG_PAGES - first;
	struct p2p_transfer t = { .run = rdma_transfer, .self = self };
	struct p2p_buf buf;
	size_t i;

	rdma_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	EXPECT_EQ(self->peer ? (long)nr : 0,
		  p2p_gpu_to_host(&self->gpu, buf.p + first * P2P_PAGE,
				  nr * P2P_PAGE));
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	/* All of it at first, and then the rest */
	if (self->peer)
		EXPECT_EQ(2U, t.xfer.faults);
	for (i = 0; i < buf.pages; i++) {
		EXPECT_EQ(i < first ? rdma_vram_kind(self) : P2PTEST_PAGE_HOST,
			  rdma_page(_metadata, self, &buf, i).kind) {
			TH_LOG("page %zu", i);
		}
	}
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, self, &buf);
}

/* The right to write is taken away: nothing is written from now on */
TEST_F_TIMEOUT(odp, protect, TIMEOUT_S)
{
	struct p2p_transfer t = { .run = rdma_transfer, .self = self };
	struct p2p_buf buf;
	unsigned char *copy;

	rdma_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	copy = malloc(buf.len);
	ASSERT_NE(NULL, copy);
	p2p_transfer_start(_metadata, &t, &buf, true);
	ASSERT_EQ(0, mprotect(buf.p, buf.len, PROT_READ));
	memcpy(copy, buf.p, buf.len);
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(-EPERM, t.ret);
	EXPECT_EQ(0, memcmp(copy, buf.p, buf.len));
	p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0, t.xfer.done);
	p2p_expect_pattern(_metadata, "rest", buf.p + t.xfer.done, BEFORE,
			   t.xfer.done, buf.len - t.xfer.done);
	free(copy);
	rdma_buf_free(_metadata, self, &buf);
}

static void *queued_to_vram(void *arg)
{
	struct queued *q = arg;

	q->ret = p2p_gpu_to_vram(&q->rdma->gpu, q->buf->p, q->buf->len);
	return NULL;
}

static void *queued_add_atomic(void *arg)
{
	struct queued *q = arg;

	q->ret = rdma_rereg(q->rdma->fd, q->buf->handle,
			    P2PTEST_RDMA_MR_ATOMIC);
	return NULL;
}

/*
 * Faults all pages of a buffer while the lock is held and @run is queued before
 * the page fault. Returns what @run returned.
 */
static long queued_before_fault(struct __test_metadata *_metadata,
				RDMA_SELF *self, struct p2p_buf *buf,
				void *(*run)(void *arg))
{
	struct queued hold = { .rdma = self, .buf = buf };
	struct queued first = hold;

	queued_start(_metadata, &hold, queued_hold);
	queued_start(_metadata, &first, run);
	EXPECT_EQ(0, rdma_fault(self->fd, buf->handle, buf->p, buf->len,
				P2PTEST_RDMA_FAULT_WRITE));
	ASSERT_EQ(0, pthread_join(first.thread, NULL));
	queued_end(_metadata, &hold);
	return first.ret;
}

/*
 * A page moves when a page fault has found it and does not have the lock yet:
 * its invalidation gets the lock first. The page fault must see that what it
 * found is no more, or the device is left with a page that has another use.
 */
TEST_F_TIMEOUT(odp, sequence, TIMEOUT_S)
{
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, 8, BEFORE, MR_ODP_WRITE);
	EXPECT_EQ((long)buf.pages,
		  queued_before_fault(_metadata, self, &buf, queued_to_vram));

	/* Faults again what was not mapped, but not what seems to be */
	rdma_buf_write(_metadata, self, &buf, AFTER);
	rdma_expect_pages(_metadata, self, &buf, rdma_vram_kind(self),
			  PAGE_ALL);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, self, &buf);
}

/*
 * Atomic access is added when a page fault has found pages of a peer and does
 * not have the lock yet: it must not map them.
 */
TEST_F_TIMEOUT(odp, atomic_added, TIMEOUT_S)
{
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, 8, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	EXPECT_EQ(0, queued_before_fault(_metadata, self, &buf,
					 queued_add_atomic));
	rdma_expect_pages(_metadata, self, &buf, P2PTEST_PAGE_HOST, PAGE_ALL);
	rdma_buf_write(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	rdma_buf_free(_metadata, self, &buf);
}

/* A thread that moves the pages until @stop is set, how often, and how many went in */

struct mover {
	pthread_t thread;
	const struct p2p_gpu *gpu;
	struct p2p_buf *buf;
	bool touch;		/* by the CPU, else by the GPU's driver */
	unsigned char sum;
	bool stop;
	int rounds;
	long moved;
};

static void *mover_run(void *arg)
{
	struct mover *m = arg;
	size_t i;
	long n;

	while (!__atomic_load_n(&m->stop, __ATOMIC_RELAXED)) {
		n = p2p_gpu_to_vram(m->gpu, m->buf->p, m->buf->len);
		if (n > 0)
			m->moved += n;
		p2p_sleep_ms(300);
		if (m->touch)
			for (i = 0; i < m->buf->len; i += P2P_PAGE)
				m->sum += __atomic_load_n(&m->buf->p[i],
							  __ATOMIC_RELAXED);
		else
			p2p_gpu_to_host(m->gpu, m->buf->p, m->buf->len);
		p2p_sleep_ms(300);
		__atomic_add_fetch(&m->rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

FIXTURE(odp_move)
{
	RDMA_SELF rdma;
};

FIXTURE_VARIANT(odp_move)
{
	bool write;
	bool touch;
};

FIXTURE_VARIANT_ADD(odp_move, write_migrate) { .write = true };
FIXTURE_VARIANT_ADD(odp_move, write_touch) { .write = true, .touch = true };
FIXTURE_VARIANT_ADD(odp_move, read_migrate) { };
FIXTURE_VARIANT_ADD(odp_move, read_touch) { .touch = true };

FIXTURE_SETUP(odp_move)
{
	odp_setup(_metadata, &self->rdma, NULL);
}

FIXTURE_TEARDOWN_PARENT(odp_move)
{
	odp_teardown(_metadata, &self->rdma, NULL);
}

/*
 * Pages move between host and VRAM under transfers: no byte is lost. How often
 * they move during one depends on who gets the region's lock first.
 */
#define MOVE_ROUNDS	6
#define MOST_TRANSFERS	10

TEST_F_TIMEOUT(odp_move, load, TIMEOUT_S)
{
	RDMA_SELF *rdma = &self->rdma;
	struct mover m = { .touch = variant->touch };
	struct p2p_transfer t = { .run = rdma_transfer, .self = rdma };
	struct p2p_buf buf;
	int i, rounds = 0;

	rdma_buf_init(_metadata, rdma, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	m.gpu = &rdma->gpu;
	m.buf = &buf;
	ASSERT_EQ(0, pthread_create(&m.thread, NULL, mover_run, &m));
	for (i = 0; i < MOST_TRANSFERS && rounds < MOVE_ROUNDS; i++) {
		p2p_transfer_start(_metadata, &t, &buf, variant->write);
		ASSERT_EQ(0, pthread_join(t.thread, NULL));
		EXPECT_EQ(0, t.ret);
		if (variant->write) {
			p2p_buf_cpu_read(_metadata, &buf, AFTER);
			/* The next transfer must not make up for this one */
			p2p_fill(buf.p, BEFORE, 0, buf.len);
		} else {
			p2p_expect_pattern(_metadata, "DMA read", t.data,
					   BEFORE, 0, buf.len);
		}
		free(t.data);
		rounds = __atomic_load_n(&m.rounds, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&m.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(m.thread, NULL));
	EXPECT_LE(MOVE_ROUNDS, rounds);
	/* Again and again, and not only at first */
	EXPECT_LT((long)(2 * buf.pages), m.moved);
	p2p_buf_cpu_read(_metadata, &buf, BEFORE);
	rdma_buf_free(_metadata, rdma, &buf);
}

/* A region ends while a transfer uses it: the transfer goes on, or fails */
TEST_F_TIMEOUT(odp, dereg, TIMEOUT_S)
{
	struct p2p_transfer t = { .run = rdma_transfer, .self = self };
	struct p2p_buf buf;

	rdma_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	EXPECT_EQ(0, rdma_dereg(self->fd, buf.handle));
	EXPECT_EQ(-ENOENT, rdma_fault(self->fd, buf.handle, buf.p, 1, 0));
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(0, t.ret);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

/* A process dies with a transfer in flight: all of it goes away */
TEST_F_TIMEOUT(odp, kill, TIMEOUT_S)
{
	pid_t pid = p2p_fork_child(_metadata);

	if (!pid) {
		struct p2p_transfer t = { .run = rdma_transfer, .self = self };
		struct p2p_buf buf;

		rdma_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE,
			      MR_ODP_WRITE);
		rdma_buf_to_vram(_metadata, self, &buf);
		p2p_transfer_start(_metadata, &t, &buf, true);
		kill(getpid(), SIGKILL);
	}
	ASSERT_EQ(pid, waitpid(pid, NULL, 0));
	/* Teardown waits for VRAM to be free */
}

/* The device goes away with a transfer in flight, and comes back */
TEST_F_TIMEOUT(odp, unbind, TIMEOUT_S)
{
	char name[P2P_PCI_NAME];
	struct p2p_transfer t = { .run = rdma_transfer, .self = self };
	struct p2p_buf buf;

	ASSERT_EQ(0, p2p_pci_name(RDMA_DRIVER, 0, name));
	rdma_buf_init(_metadata, self, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, self, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	EXPECT_EQ(0, p2p_pci_unbind(RDMA_DRIVER, name));
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(-ENODEV, t.ret);
	EXPECT_EQ(-ENODEV, rdma_fault(self->fd, buf.handle, buf.p, 1, 0));
	p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0, t.xfer.done);
	p2p_expect_pattern(_metadata, "rest", buf.p + t.xfer.done + P2P_PAGE,
			   BEFORE, t.xfer.done + P2P_PAGE,
			   buf.len - t.xfer.done - P2P_PAGE);

	ASSERT_EQ(0, p2p_pci_bind(RDMA_DRIVER, name, 0));
	EXPECT_EQ(0, close(self->fd));
	self->fd = p2p_dev_open(RDMA_DRIVER, 0);
	ASSERT_LE(0, self->fd);
	ASSERT_EQ(0, rdma_reg(self->fd, buf.p, buf.len, MR_ODP_WRITE,
			      &buf.handle));
	rdma_buf_write(_metadata, self, &buf, OTHER);
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	rdma_buf_free(_metadata, self, &buf);
}

FIXTURE(odp_silent)
{
	RDMA_SELF odp;
	char name[P2P_PCI_NAME];
};

FIXTURE_SETUP(odp_silent)
{
	odp_setup(_metadata, &self->odp, NULL);
	if (self->odp.fd >= 0)
		ASSERT_EQ(0, p2p_pci_name(RDMA_DRIVER, 0, self->name));
}

FIXTURE_TEARDOWN_PARENT(odp_silent)
{
	/* Also if the test did not get that far */
	if (*self->name)
		p2p_pci_command(self->name, 0, P2P_PCI_MEMORY);
	odp_teardown(_metadata, &self->odp, NULL);
	if (!*self->name)
		return;
	EXPECT_EQ(0, p2p_pci_unbind(RDMA_DRIVER, self->name));
	EXPECT_EQ(0, p2p_pci_bind(RDMA_DRIVER, self->name, 0));
}

/*
 * The device does not answer any more. It could still write to a page that is about
 * to be somebody else's, so the driver takes the bus away from it.
 */
TEST_F_TIMEOUT(odp_silent, in_flight, TIMEOUT_S)
{
	RDMA_SELF *odp = &self->odp;
	struct p2p_transfer t = { .run = rdma_transfer, .self = odp };
	struct p2p_buf buf;
	int command;

	rdma_buf_init(_metadata, odp, &buf, LONG_PAGES, BEFORE, MR_ODP_WRITE);
	rdma_buf_to_vram(_metadata, odp, &buf);
	p2p_transfer_start(_metadata, &t, &buf, true);
	ASSERT_LE(0, p2p_pci_command(self->name, P2P_PCI_MEMORY, 0));
	/* Waits for the DMA that is in flight */
	p2p_expect_pattern(_metadata, "last", buf.p + buf.len - P2P_PAGE,
			   BEFORE, buf.len - P2P_PAGE, P2P_PAGE);
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(-EIO, t.ret);
	command = p2p_pci_command(self->name, 0, 0);
	ASSERT_LE(0, command);
	EXPECT_EQ(0, command & P2P_PCI_MASTER);
	p2p_expect_pattern(_metadata, "done", buf.p, AFTER, 0, t.xfer.done);
	p2p_expect_pattern(_metadata, "rest", buf.p + t.xfer.done + P2P_PAGE,
			   BEFORE, t.xfer.done + P2P_PAGE,
			   buf.len - t.xfer.done - P2P_PAGE);

	/* It is not trusted again */
	ASSERT_LE(0, p2p_pci_command(self->name, 0, P2P_PCI_MEMORY));
	p2p_transfer_start(_metadata, &t, &buf, true);
	p2p_transfer_end(_metadata, &t);
	EXPECT_EQ(-EIO, t.ret);
	EXPECT_EQ(0U, t.xfer.done);
	rdma_buf_free(_metadata, odp, &buf);
}

TEST_HARNESS_MAIN
