// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: each allocation fails once
 *
 * The steps are the calls of the test GPU and the test NIC, page faults, changes
 * of the address space, and the devices' coming and going. Whatever fails, the
 * error says that there is no memory, nothing is lost, and the same step succeeds
 * as soon as there is memory.
 */
#include "p2p_cache.h"
#include "p2p_fixture.h"
#include "p2p_nomem.h"

FIXTURE(p2p_nomem)
{
	P2P_SELF p2p;
	struct nomem nomem;
	char gpu[P2P_PCI_NAME];
	char nic[P2P_PCI_NAME];
};

#define SELF FIXTURE_DATA(p2p_nomem)

FIXTURE_SETUP(p2p_nomem)
{
	self->p2p.gpu.fd = -1;
	if (!nomem_open(_metadata, &self->nomem))
		return;
	p2p_setup(_metadata, &self->p2p, NULL);
	if (self->p2p.nic.fd < 0)
		return;
	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, self->gpu));
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, self->nic));
}

FIXTURE_TEARDOWN_PARENT(p2p_nomem)
{
	if (self->p2p.gpu.fd < 0)
		return;
	/* Also if the test did not get that far */
	p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0);
	p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0);
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/* Pages of 4 KiB, or a huge one, which is skipped where there are none */
static bool buf_init(struct __test_metadata *_metadata, P2P_SELF *p2p,
		     struct p2p_buf *buf, unsigned int pages, __u64 seed)
{
	if (pages == P2P_HUGE / P2P_PAGE)
		return p2p_buf_init_huge(_metadata, p2p, buf, seed);
	p2p_buf_init(_metadata, p2p, buf, pages, seed);
	return true;
}

static void buf_end(struct __test_metadata *_metadata, P2P_SELF *p2p,
		    struct p2p_buf *buf, __u64 seed)
{
	p2p_buf_cpu_read(_metadata, buf, seed);
	p2p_buf_free(_metadata, p2p, buf);
}

/* Pages that have not moved for lack of memory move now */
static void to_vram_again(struct __test_metadata *_metadata, P2P_SELF *p2p,
			  struct p2p_buf *buf)
{
	ASSERT_LE(0, p2p_gpu_to_vram(&p2p->gpu, buf->p, buf->len));
	EXPECT_EQ((long)buf->pages,
		  p2p_gpu_resident(&p2p->gpu, buf->p, buf->len));
}

static long touch(const struct p2p_buf *buf)
{
	size_t pos;

	for (pos = 0; pos < buf->len; pos += P2P_PAGE)
		p2p_compare_byte(buf->p + pos, 0, 1);
	return 0;
}

static const unsigned int sizes[] = { SOME, P2P_HUGE / P2P_PAGE };

/* There, and home by the GPU and by the CPU; a huge page, too */
TEST_F_TIMEOUT(p2p_nomem, migrate, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;
	size_t i;
	long ret;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		for_each_allocation(nomem, "to VRAM") {
			if (!buf_init(_metadata, p2p, &buf, sizes[i], nomem->n))
				return;
			NOMEM_CALL(nomem, ret,
				   p2p_gpu_to_vram(&p2p->gpu, buf.p, buf.len));
			to_vram_again(_metadata, p2p, &buf);
			buf_end(_metadata, p2p, &buf, nomem->n);
		}
		for_each_allocation(nomem, "to host") {
			if (!buf_init(_metadata, p2p, &buf, sizes[i], nomem->n))
				return;
			p2p_buf_to_vram(_metadata, p2p, &buf);
			NOMEM_CALL(nomem, ret,
				   p2p_gpu_to_host(&p2p->gpu, buf.p, buf.len));
			buf_end(_metadata, p2p, &buf, nomem->n);
		}
		for_each_allocation(nomem, "touched by the CPU") {
			if (!buf_init(_metadata, p2p, &buf, sizes[i], nomem->n))
				return;
			p2p_buf_to_vram(_metadata, p2p, &buf);
			NOMEM_CALL(nomem, ret, touch(&buf));
			buf_end(_metadata, p2p, &buf, nomem->n);
		}
	}
	EXPECT_LT(20U, nomem->failed);
}

/* The GPU's own access, and what it says about pages */
TEST_F_TIMEOUT(p2p_nomem, gpu, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	unsigned char *data = malloc(P2P_HUGE);
	__u64 locs[SOME];
	struct p2p_gpu gpu;
	struct p2p_buf buf;
	size_t i;
	long ret;

	ASSERT_NE(NULL, data);
	for_each_allocation(nomem, "open") {
		NOMEM_CALL(nomem, ret, p2p_gpu_open(&gpu, 0));
		if (!ret)
			p2p_gpu_close(&gpu);
	}
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		for_each_allocation(nomem, "GPU write") {
			if (!buf_init(_metadata, p2p, &buf, sizes[i], BEFORE))
				return;
			p2p_buf_to_vram(_metadata, p2p, &buf);
			p2p_fill(data, AFTER, 0, buf.len);
			NOMEM_CALL(nomem, ret,
				   p2p_gpu_write(&p2p->gpu, buf.p, data, buf.len));
			if (ret < 0)
				nomem_either(_metadata, &buf, BEFORE, AFTER);
			ASSERT_LE(0, p2p_gpu_write(&p2p->gpu, buf.p, data,
						   buf.len));
			buf_end(_metadata, p2p, &buf, AFTER);
		}
	}
	for_each_allocation(nomem, "GPU write to no page yet") {
		p2p_buf_init(_metadata, p2p, &buf, SOME, BEFORE);
		ASSERT_EQ(0, madvise(buf.p, buf.len, MADV_DONTNEED));
		p2p_fill(data, AFTER, 0, buf.len);
		NOMEM_CALL(nomem, ret, p2p_gpu_write(&p2p->gpu, buf.p, data, buf.len));
		ASSERT_LE(0, p2p_gpu_write(&p2p->gpu, buf.p, data, buf.len));
		buf_end(_metadata, p2p, &buf, AFTER);
	}
	for_each_allocation(nomem, "lookup") {
		p2p_buf_init(_metadata, p2p, &buf, SOME, BEFORE);
		p2p_buf_to_vram(_metadata, p2p, &buf);
		NOMEM_CALL(nomem, ret, p2p_gpu_lookup(&p2p->gpu, buf.p, buf.len, locs));
		buf_end(_metadata, p2p, &buf, BEFORE);
	}
	free(data);
	EXPECT_LT(5U, nomem->failed);
}

static void nic_step(struct __test_metadata *_metadata,
		     SELF *self, bool vram, bool write)
{
	unsigned char *data = malloc(FEW * P2P_PAGE);
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;
	const int or = vram ? -ENOMEM : NOMEM_NOT_MAPPED;
	char name[40];
	int ret;

	ASSERT_NE(NULL, data);
	snprintf(name, sizeof(name), "NIC %s of %s", write ? "write" : "read",
		 vram ? "VRAM" : "host memory");
	for_each_allocation(nomem, name) {
		p2p_buf_init(_metadata, p2p, &buf, FEW, BEFORE);
		if (vram)
			p2p_buf_to_vram(_metadata, p2p, &buf);
		if (write) {
			p2p_fill(data, AFTER, 0, buf.len);
			NOMEM_CALL_OR(nomem, ret, or,
				      p2p_nic_write(&p2p->nic, buf.handle, buf.p,
						    data, buf.len, NULL));
			if (ret < 0)
				nomem_either(_metadata, &buf, BEFORE, AFTER);
			p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
		} else {
			NOMEM_CALL_OR(nomem, ret, or,
				      p2p_nic_read(&p2p->nic, buf.handle, buf.p,
						   data, buf.len, NULL));
			if (!ret)
				p2p_expect_pattern(_metadata, "NIC read", data,
						   BEFORE, 0, buf.len);
		}
		buf_end(_metadata, p2p, &buf, write ? AFTER : BEFORE);
	}
	free(data);
}

/* Regions, faults and DMA mappings of the NIC */
TEST_F_TIMEOUT(p2p_nomem, nic, TIMEOUT_S)
{
	struct p2ptest_nic_page pages[FEW];
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	struct p2p_nic nic;
	struct p2p_buf buf;
	__u32 handle;
	int ret;

	for_each_allocation(nomem, "open") {
		NOMEM_CALL(nomem, ret, p2p_nic_open(&nic, 0));
		if (!ret)
			p2p_nic_close(&nic);
	}
	for_each_allocation(nomem, "register") {
		p2p_buf_init(_metadata, p2p, &buf, FEW, BEFORE);
		NOMEM_CALL(nomem, ret,
			   p2p_nic_reg(&p2p->nic, buf.p, buf.len, 0, &handle));
		if (!ret)
			EXPECT_EQ(0, p2p_nic_dereg(&p2p->nic, handle));
		buf_end(_metadata, p2p, &buf, BEFORE);
	}
	nic_step(_metadata, self, false, false);
	nic_step(_metadata, self, false, true);
	nic_step(_metadata, self, true, false);
	nic_step(_metadata, self, true, true);
	for_each_allocation(nomem, "query") {
		p2p_buf_init(_metadata, p2p, &buf, FEW, BEFORE);
		NOMEM_CALL(nomem, ret,
			   p2p_nic_query(&p2p->nic, buf.handle, buf.p, buf.len, pages));
		buf_end(_metadata, p2p, &buf, BEFORE);
	}
	EXPECT_LT(10U, nomem->failed);
}

/* The first region of a process registers its first notifier */
TEST_F_TIMEOUT(p2p_nomem, first_notifier, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	unsigned char data[P2P_PAGE];
	int status, ret;
	__u32 handle;

	for_each_allocation(nomem, "register for the first time") {
		pid_t pid = p2p_fork_child(_metadata);

		if (!pid) {
			struct nomem own = { .n = nomem->n };
			struct p2p_nic nic;
			unsigned char *p = p2p_alloc(P2P_PAGE);

			ASSERT_NE(NULL, p);
			own.fd = open(NOMEM_FILE, O_RDWR | O_CLOEXEC);
			ASSERT_LE(0, own.fd);
			ASSERT_EQ(0, p2p_nic_open(&nic, 0));
			NOMEM_CALL(&own, ret, p2p_nic_reg(&nic, p, P2P_PAGE, 0,
							  &handle));
			if (ret)
				ASSERT_EQ(0, p2p_nic_reg(&nic, p, P2P_PAGE, 0,
							 &handle));
			ASSERT_EQ(0, p2p_nic_read(&nic, handle, p, data, P2P_PAGE,
						  NULL));
			_exit(own.done);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		ASSERT_TRUE(WIFEXITED(status));
		nomem->done = WEXITSTATUS(status);
	}
	EXPECT_LT(2U, nomem->failed);
}

/* The first access to VRAM registers the range that its alias is in */
TEST_F_TIMEOUT(p2p_nomem, first_alias, TIMEOUT_S)
{
	unsigned char data[P2P_PAGE];
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;
	int ret;

	for_each_allocation(nomem, "NIC reads VRAM for the first time") {
		p2p_gpu_close(&p2p->gpu);
		ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
		ASSERT_EQ(0, p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0));
		ASSERT_EQ(0, p2p_gpu_open(&p2p->gpu, 0));
		p2p_buf_init(_metadata, p2p, &buf, 1, BEFORE);
		p2p_buf_to_vram(_metadata, p2p, &buf);
		NOMEM_CALL(nomem, ret, p2p_nic_read(&p2p->nic, buf.handle, buf.p,
						    data, buf.len, NULL));
		p2p_buf_nic_read(_metadata, p2p, &buf, BEFORE);
		buf_end(_metadata, p2p, &buf, BEFORE);
	}
	EXPECT_LT(2U, nomem->failed);
}

/* Registrations of the NIC as a card: either all is known to it, or nothing */
TEST_F_TIMEOUT(p2p_nomem, card, TIMEOUT_S)
{
	struct p2ptest_nic_copy copy = { .len = FEW * P2P_PAGE };
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf src, dst;
	int ret, vram;

	for (vram = 0; vram < 2; vram++) {
		for_each_allocation(nomem, vram ? "pin VRAM" : "pin host memory") {
			p2p_buf_init(_metadata, p2p, &src, FEW, nomem->n);
			if (vram)
				p2p_buf_to_vram(_metadata, p2p, &src);
			NOMEM_CALL_OR(nomem, ret, NOMEM_NOT_MAPPED,
				      p2p_nic_pin(&p2p->nic, src.p, src.len, 0,
						  &copy.src));
			if (ret)
				ASSERT_EQ(0, p2p_nic_pin(&p2p->nic, src.p,
							 src.len, 0, &copy.src));
			EXPECT_EQ(0, p2p_nic_unpin(&p2p->nic, copy.src));
			buf_end(_metadata, p2p, &src, nomem->n);
		}
		/* One of them has moved, so the card lacks it */
		for_each_allocation(nomem, "copy") {
			p2p_buf_init(_metadata, p2p, &src, FEW, nomem->n);
			p2p_buf_init(_metadata, p2p, &dst, FEW, OTHER);
			ASSERT_EQ(0, p2p_nic_pin(&p2p->nic, src.p, src.len, 0,
						 &copy.src));
			ASSERT_EQ(0, p2p_nic_pin(&p2p->nic, dst.p, dst.len,
						 P2PTEST_NIC_MR_WRITE,
						 &copy.dst));
			p2p_buf_to_vram(_metadata, p2p, vram ? &src : &dst);
			NOMEM_CALL_OR(nomem, ret, NOMEM_NOT_MAPPED,
				      p2p_nic_copy(&p2p->nic, &copy));
			if (ret) {
				nomem_either(_metadata, &dst, OTHER, nomem->n);
				ASSERT_EQ(0, p2p_nic_copy(&p2p->nic, &copy));
			}
			EXPECT_EQ(0, p2p_nic_unpin(&p2p->nic, copy.src));
			EXPECT_EQ(0, p2p_nic_unpin(&p2p->nic, copy.dst));
			buf_end(_metadata, p2p, &dst, nomem->n);
			buf_end(_metadata, p2p, &src, nomem->n);
		}
	}
	EXPECT_LT(10U, nomem->failed);
}

/*
 * A cache of registrations that gets no memory for another one ends the one that it
 * needs least, and gets the memory then
 */
TEST_F_TIMEOUT(p2p_nomem, cache, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	unsigned int evicted = 0;
	__u32 idle, used, again;
	struct p2p_buf buf[3];
	int i, ret;

	for_each_allocation(nomem, "pin by a cache") {
		struct p2p_cache *cache = p2p_cache_new(&p2p->nic, 1UL << 20);
		struct p2p_cache_stats stats;

		ASSERT_NE(NULL, cache);
		for (i = 0; i < 3; i++)
			p2p_buf_init(_metadata, p2p, &buf[i], FEW, nomem->n + i);
		p2p_buf_to_vram(_metadata, p2p, &buf[2]);
		ASSERT_EQ(0, p2p_cache_get(cache, buf[0].p, buf[0].len, 0, &idle));
		ASSERT_EQ(0, p2p_cache_get(cache, buf[1].p, buf[1].len, 0, &used));
		NOMEM_CALL_OR(nomem, ret, NOMEM_NOT_MAPPED,
			      p2p_cache_get(cache, buf[2].p, buf[2].len, 0, &again));
		EXPECT_NE(-ENOMEM, ret);
		ASSERT_EQ(0, p2p_cache_stats(cache, &stats));
		EXPECT_GE(1U, stats.evictions);
		EXPECT_EQ(ret ? 2U : 3U, stats.misses);
		if (stats.evictions) {
			EXPECT_EQ(0, ret);
			EXPECT_EQ(-ENOENT, p2p_nic_unpin(&p2p->nic, idle));
			evicted++;
		}
		/* The other one is still there */
		ASSERT_EQ(0, p2p_cache_get(cache, buf[1].p, buf[1].len, 0, &again));
		EXPECT_EQ(used, again);
		p2p_cache_free(cache);
		for (i = 0; i < 3; i++)
			buf_end(_metadata, p2p, &buf[i], nomem->n + i);
	}
	EXPECT_LT(0U, evicted);
}

static int fork_and_write(struct p2p_buf *buf)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		return -errno;
	if (!pid) {
		if (p2p_compare(buf->p, BEFORE, 0, buf->len) != buf->len)
			_exit(1);
		p2p_fill(buf->p, OTHER, 0, buf->len);
		_exit(p2p_compare(buf->p, OTHER, 0, buf->len) != buf->len);
	}
	/* The child shares the page's count of users with us */
	p2p_fill(buf->p, AFTER, 0, buf->len);
	if (waitpid(pid, &status, 0) != pid)
		return -errno;
	return status ? -EPROTO : 0;
}

static int change(int what, struct p2p_buf *buf)
{
	unsigned char *half = buf->p + buf->len / 2;
	int ret = 0;

	switch (what) {
	case 0:
		ret = mprotect(half, P2P_PAGE, PROT_READ);
		break;
	case 1:
		ret = madvise(half, P2P_PAGE, MADV_DONTNEED);
		break;
	case 2:
		ret = munmap(half, P2P_PAGE);
		break;
	}
	return ret ? -errno : 0;
}

/* fork() and writes of both sides; a huge page that is split by a change of one */
TEST_F_TIMEOUT(p2p_nomem, address_space, TIMEOUT_S)
{
	static const char *const names[] = { "mprotect", "dontneed", "munmap" };
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	const size_t at = P2P_HUGE / 2 + P2P_PAGE;
	struct p2p_buf buf;
	size_t i;
	int ret;

	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		for_each_allocation(nomem, "fork") {
			if (!buf_init(_metadata, p2p, &buf, sizes[i], BEFORE))
				return;
			p2p_buf_to_vram(_metadata, p2p, &buf);
			NOMEM_CALL(nomem, ret, fork_and_write(&buf));
			buf_end(_metadata, p2p, &buf, ret ? BEFORE : AFTER);
		}
	for (i = 0; i < ARRAY_SIZE(names); i++)
		for_each_allocation(nomem, names[i]) {
			if (!buf_init(_metadata, p2p, &buf, P2P_HUGE / P2P_PAGE,
				      BEFORE))
				return;
			p2p_buf_to_vram(_metadata, p2p, &buf);
			NOMEM_CALL(nomem, ret, change(i, &buf));
			p2p_expect_pattern(_metadata, "in front", buf.p, BEFORE,
					   0, P2P_HUGE / 2);
			p2p_expect_pattern(_metadata, "behind", buf.p + at,
					   BEFORE, at, P2P_HUGE - at);
			p2p_buf_free(_metadata, p2p, &buf);
		}
	EXPECT_LT(20U, nomem->failed);
}

/* The GPU goes without memory to spare: all pages come home all the same */
TEST_F_TIMEOUT(p2p_nomem, gpu_goes, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;
	size_t i;
	int ret;

	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		for_each_allocation(nomem, "GPU unbinds") {
			if (!buf_init(_metadata, p2p, &buf, sizes[i], nomem->n))
				return;
			p2p_buf_to_vram(_metadata, p2p, &buf);
			NOMEM_CALL(nomem, ret,
				   p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
			/* There was no memory to say it */
			if (ret)
				ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER,
							    self->gpu));
			EXPECT_EQ(0, p2p_device_private(buf.p, buf.len));
			buf_end(_metadata, p2p, &buf, nomem->n);
			p2p_gpu_close(&p2p->gpu);
			ASSERT_EQ(0, p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0));
			ASSERT_EQ(0, p2p_gpu_open(&p2p->gpu, 0));
		}
}

/* Both devices are there, and the NIC reaches the GPU */
static void nic_writes(struct __test_metadata *_metadata, P2P_SELF *p2p)
{
	struct p2p_buf buf;

	while (p2p->nic.fd < 0 && p2p_nic_open(&p2p->nic, 0))
		p2p_sleep_ms(20);
	p2p_buf_init(_metadata, p2p, &buf, FEW, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	buf_end(_metadata, p2p, &buf, AFTER);
}

/* A driver does not get its device, but will */
TEST_F_TIMEOUT(p2p_nomem, gpu_comes, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	int ret;

	for_each_allocation(nomem, "GPU binds") {
		p2p_gpu_close(&p2p->gpu);
		ASSERT_EQ(0, p2p_pci_unbind(P2P_GPU_DRIVER, self->gpu));
		NOMEM_CALL_OR(nomem, ret, NOMEM_NO_REGION,
			      p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, -1));
		if (ret)
			ASSERT_EQ(0, p2p_pci_bind(P2P_GPU_DRIVER, self->gpu, 0));
		while (p2p_gpu_open(&p2p->gpu, 0))
			p2p_sleep_ms(20);
	}
	nic_writes(_metadata, p2p);
	EXPECT_LT(20U, nomem->failed);
}

TEST_F_TIMEOUT(p2p_nomem, nic_comes, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	int ret;

	for_each_allocation(nomem, "NIC binds") {
		p2p_nic_close(&p2p->nic);
		ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->nic));
		NOMEM_CALL_OR(nomem, ret, NOMEM_NO_REGION,
			      p2p_pci_bind(P2P_NIC_DRIVER, self->nic, -1));
		if (ret)
			ASSERT_EQ(0, p2p_pci_bind(P2P_NIC_DRIVER, self->nic, 0));
	}
	nic_writes(_metadata, p2p);
	EXPECT_LT(10U, nomem->failed);
}

/*
 * The module of a driver is loaded. It is in memory already: without memory, 9p forgets
 * files that its server holds open, and from then on refuses all others.
 */
TEST_F_TIMEOUT(p2p_nomem, module_loads, TIMEOUT_S)
{
	struct nomem *nomem = &self->nomem;
	P2P_SELF *p2p = &self->p2p;
	ssize_t len;
	void *image;
	int ret;

	p2p_nic_close(&p2p->nic);
	if (!p2p_driver_unload(_metadata, P2P_NIC_DRIVER))
		return;
	len = p2p_module_map(P2P_NIC_DRIVER, &image);
	ASSERT_LT(0, len);
	for_each_allocation(nomem, "module is loaded") {
		ret = p2p_module_unload(P2P_NIC_DRIVER);
		ASSERT_TRUE(!ret || ret == -ENOENT);
		NOMEM_CALL_OR(nomem, ret, NOMEM_NO_DRIVERS_DIR,
			      p2p_module_init(image, len, ""));
		if (ret)
			ASSERT_EQ(0, p2p_module_init(image, len, ""));
		/* The driver may be there without its device */
		p2p_pci_bind(P2P_NIC_DRIVER, self->nic, -1);
	}
	nic_writes(_metadata, p2p);
	munmap(image, len);
	EXPECT_LT(100U, nomem->failed);
}

TEST_HARNESS_MAIN
