// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: why a page is, or is not,
 * reached where it lies
 *
 * Each result that include/linux/hmm.h knows is brought about, and has to be
 * reported alike by the NIC's driver, by the counter in
 * /sys/kernel/mm/hmm/p2p_stats and by the tracepoint hmm:hmm_p2p. Further, the
 * administrator's policy, BAR windows smaller than VRAM, a wrong alias, two
 * GPUs, a NIC that cannot express an address, and one with other transfers.
 *
 * Tests that depend on the topology are skipped in others, so one run cannot
 * pass all of them. The same goes for tests that reload a driver: they need to
 * know where the modules are (P2PTEST_MODDIR).
 */
#include "p2p_fixture.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include "../../../../lib/test_hmm_uapi.h"

#define PAGES	16

/* Counters and tracepoint, from one moment on */
struct record {
	struct p2p_stats stats;
	struct p2p_trace trace;
	char nic[P2P_PCI_NAME];
};

static void record_start(struct __test_metadata *_metadata, P2P_SELF *self,
			 struct record *record)
{
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, self->nic.id, record->nic));
	ASSERT_EQ(0, p2p_trace_start(&record->trace))
		TH_LOG("no tracepoint hmm:hmm_p2p");
	ASSERT_EQ(0, p2p_stats_read(&record->stats));
}

/*
 * Since the start, these pages met these results, and no others any. Pages may
 * be counted more than once if the NIC has to look at them @again.
 */
static void record_expect(struct __test_metadata *_metadata,
			  struct record *record, const struct p2p_buf *buf,
			  const __u64 want[P2PTEST_REASON_MAX], bool again)
{
	__u64 traced[P2PTEST_REASON_MAX];
	int i;

	EXPECT_EQ(0, p2p_stats_since(&record->stats));
	EXPECT_EQ(0, p2p_trace_count(&record->trace, record->nic, buf->p,
				     buf->len, traced));
	p2p_trace_stop(&record->trace);
	for (i = 0; i < P2PTEST_REASON_MAX; i++) {
		/* Two ways of reporting, the same numbers */
		EXPECT_EQ(record->stats.pages[i], traced[i]) {
			TH_LOG("tracepoint, result=%s", p2p_reason_names[i]);
		}
		if (again && want[i]) {
			EXPECT_LE(want[i], record->stats.pages[i]) {
				TH_LOG("counter %s", p2p_reason_names[i]);
			}
			continue;
		}
		EXPECT_EQ(want[i], record->stats.pages[i]) {
			TH_LOG("counter %s", p2p_reason_names[i]);
		}
	}
}

/* Results that one transfer is enough to see */

FIXTURE(p2p_result)
{
	P2P_SELF p2p;
};

FIXTURE_VARIANT(p2p_result)
{
	int reason;
};

FIXTURE_VARIANT_ADD(p2p_result, bus_addr) { P2PTEST_REASON_BUS_ADDR };
FIXTURE_VARIANT_ADD(p2p_result, host_bridge) { P2PTEST_REASON_HOST_BRIDGE };
FIXTURE_VARIANT_ADD(p2p_result, no_alias) { P2PTEST_REASON_NO_ALIAS };
FIXTURE_VARIANT_ADD(p2p_result, unregistered) { P2PTEST_REASON_UNREGISTERED };
FIXTURE_VARIANT_ADD(p2p_result, topology) { P2PTEST_REASON_TOPOLOGY };
FIXTURE_VARIANT_ADD(p2p_result, policy) { P2PTEST_REASON_POLICY };
FIXTURE_VARIANT_ADD(p2p_result, read_only) { P2PTEST_REASON_READ_ONLY };
FIXTURE_VARIANT_ADD(p2p_result, map_failed) { P2PTEST_REASON_MAP_FAILED };

FIXTURE_SETUP(p2p_result)
{
	p2p_setup(_metadata, &self->p2p, NULL);
}

FIXTURE_TEARDOWN_PARENT(p2p_result)
{
	EXPECT_EQ(0, p2p_maps_work());
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/* Make the entries read-only: share them with a child, which waits */
static pid_t share(struct __test_metadata *_metadata)
{
	pid_t pid = p2p_fork_child(_metadata);

	if (!pid) {
		pause();
		_exit(0);
	}
	return pid;
}

TEST_F_TIMEOUT(p2p_result, reported, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	__u64 want[P2PTEST_REASON_MAX] = {};
	struct p2ptest_gpu_info before;
	struct record record;
	struct p2p_buf buf;
	pid_t child = 0;

	if (!p2p->has_p2p)
		SKIP(return, "the kernel has no PCI_P2PDMA");
	switch (variant->reason) {
	case P2PTEST_REASON_BUS_ADDR:
	case P2PTEST_REASON_HOST_BRIDGE:
	case P2PTEST_REASON_TOPOLOGY:
		if (p2p_path_reason(p2p->path) != variant->reason)
			SKIP(return, "another topology: result would be %s",
			     p2p_reason_names[p2p_path_reason(p2p->path)]);
		break;
	case P2PTEST_REASON_READ_ONLY:
		if (!p2p_peer_path(p2p->path))
			SKIP(return, "no path to the GPU");
		break;
	case P2PTEST_REASON_NO_ALIAS:
		ASSERT_EQ(0, p2p_gpu_window(&p2p->gpu, 0, 0));
		break;
	case P2PTEST_REASON_UNREGISTERED:
		ASSERT_EQ(0, p2p_gpu_inject(&p2p->gpu, true));
		break;
	case P2PTEST_REASON_POLICY:
		ASSERT_EQ(0, p2p_policy_set("never"));
		break;
	case P2PTEST_REASON_MAP_FAILED:
		if (!p2p_peer_path(p2p->path))
			SKIP(return, "no path to the GPU");
		if (!p2p_maps_can_fail())
			SKIP(return,
			     "the kernel has no CONFIG_FAIL_HMM_DMA_MAP");
		/* HMM finds the path before the mapping fails */
		want[p2p_path_reason(p2p->path)] = PAGES;
		ASSERT_EQ(0, p2p_aliases_fail(&p2p->gpu));
		break;
	}

	p2p_buf_init(_metadata, p2p, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	if (variant->reason == P2PTEST_REASON_READ_ONLY)
		child = share(_metadata);

	before = p2p_info(_metadata, &p2p->gpu);
	record_start(_metadata, p2p, &record);
	p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	want[variant->reason] = buf.pages;
	record_expect(_metadata, &record, &buf, want,
		      variant->reason == P2PTEST_REASON_MAP_FAILED);
	p2p_buf_reached(_metadata, p2p, &buf, buf.pages, variant->reason,
			&before);

	p2p_buf_nic_read(_metadata, p2p, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	if (child)
		p2p_kill_child(_metadata, child);
	p2p_buf_free(_metadata, p2p, &buf);
}

/* The same from a read: a page is not lost because an alias is refused */
TEST_F_TIMEOUT(p2p, refused_read, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;

	if (!self->has_p2p)
		SKIP(return, "the kernel has no PCI_P2PDMA");
	ASSERT_EQ(0, p2p_gpu_inject(&self->gpu, true));
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_read(_metadata, self, &buf, BEFORE);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			P2PTEST_REASON_UNREGISTERED, &before);
	/* And a correct alias is used again */
	ASSERT_EQ(0, p2p_gpu_inject(&self->gpu, false));
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			p2p_path_reason(self->path), &before);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A 2 MiB folio of which no page has an alias comes home as a whole, intact */
TEST_F_TIMEOUT(p2p, refused_thp, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2p_view view;
	struct p2p_buf buf;

	if (!self->has_p2p)
		SKIP(return, "the kernel has no PCI_P2PDMA");
	ASSERT_EQ(0, p2p_gpu_inject(&self->gpu, true));
	if (!p2p_buf_init_huge(_metadata, self, &buf, BEFORE))
		return;
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf.p));
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	EXPECT_EQ(buf.pages, view.kind[P2PTEST_PAGE_HOST]);
	EXPECT_LE(1U, view.reason[P2PTEST_REASON_UNREGISTERED]);
	EXPECT_EQ(buf.pages, p2p_moves(_metadata, &self->gpu, &before));
	EXPECT_EQ((long)P2P_HUGE, p2p_huge_bytes(buf.p));
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

/* A provider that knows nothing of aliases: memory of lib/test_hmm.c */
TEST_F_TIMEOUT(p2p, no_op, TIMEOUT_S)
{
	__u64 want[P2PTEST_REASON_MAX] = { [P2PTEST_REASON_NO_OP] = PAGES };
	struct hmm_dmirror_cmd cmd;
	struct p2p_view view;
	struct record record;
	struct p2p_buf buf;
	bool loaded = false;
	void *copy;
	int fd;

	if (!self->has_p2p)
		SKIP(return, "the kernel has no PCI_P2PDMA");
	if (access("/dev/hmm_dmirror0", F_OK)) {
		if (p2p_module_load("test_hmm", ""))
			SKIP(return, "no module test_hmm ($P2PTEST_MODDIR)");
		loaded = true;
	}
	fd = open("/dev/hmm_dmirror0", O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, fd);
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	copy = malloc(buf.len);
	ASSERT_NE(NULL, copy);
	cmd = (struct hmm_dmirror_cmd){
		.addr = (uintptr_t)buf.p,
		.ptr = (uintptr_t)copy,
		.npages = buf.pages,
	};
	ASSERT_EQ(0, ioctl(fd, HMM_DMIRROR_MIGRATE_TO_DEV, &cmd));
	ASSERT_EQ(buf.pages, cmd.cpages);

	record_start(_metadata, self, &record);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	record_expect(_metadata, &record, &buf, want, false);
	ASSERT_EQ(0, p2p_nic_view(&self->nic, buf.handle, buf.p, buf.len,
				  &view));
	EXPECT_EQ(buf.pages, view.kind[P2PTEST_PAGE_HOST]);
	EXPECT_EQ(buf.pages, view.reason[P2PTEST_REASON_NO_OP]);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
	free(copy);
	close(fd);
	if (loaded)
		EXPECT_EQ(0, p2p_module_unload("test_hmm"));
}

/* Policy */

/* One transfer with a buffer in VRAM, under a policy: what must it meet? */
static void under_policy(struct __test_metadata *_metadata, P2P_SELF *self,
			 const char *policy, int reason)
{
	struct p2ptest_gpu_info before;
	struct p2p_buf buf;
	char word[16];

	ASSERT_EQ(0, p2p_policy_set(policy));
	ASSERT_EQ(0, p2p_policy_get(word, sizeof(word)));
	ASSERT_STREQ(policy, word);
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages, reason, &before);
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
}

TEST_F_TIMEOUT(p2p, policy, TIMEOUT_S)
{
	const int path = p2p_path_reason(self->path);
	char word[16];

	if (!self->has_p2p)
		SKIP(return, "the kernel has no PCI_P2PDMA");
	under_policy(_metadata, self, "never", P2PTEST_REASON_POLICY);
	under_policy(_metadata, self, "switch",
		     path == P2PTEST_REASON_HOST_BRIDGE ?
			     P2PTEST_REASON_POLICY : path);
	under_policy(_metadata, self, "auto", path);

	EXPECT_EQ(-EINVAL, p2p_policy_set("always"));
	EXPECT_EQ(-EINVAL, p2p_policy_set("neve"));
	EXPECT_EQ(-EINVAL, p2p_policy_set(" "));
	ASSERT_EQ(0, p2p_policy_get(word, sizeof(word)));
	EXPECT_STREQ("auto", word);
}

/* The command line says what the policy is at first; its last word counts */
TEST(policy_at_boot)
{
	static const char *const known[] = {
		"hmm_p2p=auto", "hmm_p2p=switch", "hmm_p2p=never",
	};
	FILE *file = fopen("/proc/cmdline", "r");
	char cmdline[4096] = "", word[16];
	const char *want = NULL;
	char *rest = cmdline, *said;
	unsigned int i;

	ASSERT_NE(NULL, file);
	ASSERT_NE(NULL, fgets(cmdline, sizeof(cmdline), file));
	fclose(file);
	if (p2p_policy_get(word, sizeof(word)))
		SKIP(return, "the kernel has no PCI_P2PDMA");
	while ((said = strsep(&rest, "\n "))) {
		for (i = 0; i < ARRAY_SIZE(known); i++) {
			if (!strcmp(said, known[i]))
				want = known[i] + strlen("hmm_p2p=");
		}
	}
	if (!want)
		SKIP(return, "the command line has no hmm_p2p=");
	EXPECT_STREQ(want, word)
		TH_LOG("or was it changed since boot?");
}

/* A new policy is for new faults: what is mapped stays, as documented */
TEST_F_TIMEOUT(p2p, policy_later, TIMEOUT_S)
{
	struct p2ptest_gpu_info before;
	struct p2ptest_nic_xfer xfer;
	struct p2p_buf buf;
	void *data;

	if (!p2p_peer_path(self->path))
		SKIP(return, "no path to the GPU");
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, p2p_policy_set("never"));
	before = p2p_info(_metadata, &self->gpu);
	data = malloc(buf.len);
	ASSERT_NE(NULL, data);
	EXPECT_EQ(0, p2p_nic_read(&self->nic, buf.handle, buf.p, data, buf.len,
				  &xfer));
	EXPECT_EQ(0U, xfer.faults);
	p2p_expect_pattern(_metadata, "NIC read", data, AFTER, 0, buf.len);
	EXPECT_EQ(0U, p2p_moves(_metadata, &self->gpu, &before));

	/* Home and back again: now it counts */
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_to_vram(_metadata, self, &buf);
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, OTHER);
	p2p_buf_reached(_metadata, self, &buf, buf.pages,
			P2PTEST_REASON_POLICY, &before);
	free(data);
	p2p_buf_free(_metadata, self, &buf);
}

/* Windows */

/*
 * A window of one chunk, and two chunks of memory: what has a window is reached
 * in place, what has none comes home, page by page, in one transfer.
 */
TEST_F_TIMEOUT(p2p, window_small, TIMEOUT_S)
{
	const __u64 chunk = self->info.chunk_size;
	const size_t pages = 2 * chunk / P2P_PAGE;
	const __u64 start = chunk;
	struct p2ptest_nic_page *view;
	struct p2ptest_gpu_info before;
	size_t i, inside = 0;
	struct p2p_buf buf;
	__u64 *locs;

	if (!p2p_peer_path(self->path))
		SKIP(return, "no path to the GPU");
	if (self->info.vram_size < 8 * chunk)
		SKIP(return, "VRAM has less than eight chunks");
	ASSERT_EQ(0, p2p_gpu_window(&self->gpu, start, chunk));
	before = p2p_info(_metadata, &self->gpu);
	EXPECT_EQ(start, before.window_start);
	EXPECT_EQ(chunk, before.window_size);

	locs = calloc(pages, sizeof(*locs));
	view = calloc(pages, sizeof(*view));
	ASSERT_NE(NULL, locs);
	ASSERT_NE(NULL, view);
	p2p_buf_init(_metadata, self, &buf, pages, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	ASSERT_EQ(0, p2p_gpu_lookup(&self->gpu, buf.p, buf.len, locs));
	before = p2p_info(_metadata, &self->gpu);
	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, p2p_nic_query(&self->nic, buf.handle, buf.p, buf.len,
				   view));
	for (i = 0; i < pages; i++) {
		bool in = p2p_loc_offset(locs[i]) - start < chunk;

		inside += in;
		ASSERT_EQ(in ? p2p_peer_kind(self->path) : P2PTEST_PAGE_HOST,
			  view[i].kind) {
			TH_LOG("page %zu at VRAM offset %#llx", i,
			       p2p_loc_offset(locs[i]));
		}
		ASSERT_EQ(in ? p2p_path_reason(self->path) :
			       P2PTEST_REASON_NO_ALIAS, view[i].reason);
	}
	/* Otherwise it showed nothing */
	EXPECT_LT(0U, inside);
	EXPECT_LT(inside, pages);
	EXPECT_EQ(pages - inside, p2p_moves(_metadata, &self->gpu, &before));
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, self, &buf);
	free(locs);
	free(view);
}

/* Windows stay mapped when their pages are gone, but are not in use */
TEST_F_TIMEOUT(p2p, window_use, TIMEOUT_S)
{
	struct p2ptest_gpu_info info;
	struct p2p_buf buf;

	if (!self->has_p2p)
		SKIP(return, "the kernel has no PCI_P2PDMA");
	p2p_buf_init(_metadata, self, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, self, &buf);
	info = p2p_info(_metadata, &self->gpu);
	EXPECT_EQ(buf.pages, info.pages_used);
	EXPECT_EQ(info.vram_size / P2P_PAGE, info.pages_used + info.pages_free);
	EXPECT_LE(1U, info.windows_used);
	EXPECT_LE((info.windows_used + info.windows_idle) * info.chunk_size,
		  info.window_size);
	p2p_buf_free(_metadata, self, &buf);
	EXPECT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	info = p2p_info(_metadata, &self->gpu);
	EXPECT_EQ(0U, info.windows_used);
	EXPECT_LE(1U, info.windows_idle);
}

/* Two GPUs */

TEST_F_TIMEOUT(p2p, two_gpus, TIMEOUT_S)
{
	struct p2ptest_nic_page view[2 * PAGES];
	struct p2ptest_gpu_info before[2];
	struct p2p_gpu gpu[2] = { self->gpu };
	__u64 peers[2] = {};
	struct p2p_buf buf;
	int path[2], g;
	size_t i;

	if (p2p_gpu_count() < 2)
		SKIP(return, "there is one GPU");
	ASSERT_EQ(0, p2p_gpu_open(&gpu[1], 1));
	p2p_buf_init(_metadata, self, &buf, 2 * PAGES, BEFORE);
	for (g = 0; g < 2; g++)
		ASSERT_EQ(PAGES, p2p_gpu_to_vram(&gpu[g], buf.p + g *
						 PAGES * P2P_PAGE,
						 PAGES * P2P_PAGE));
	for (g = 0; g < 2; g++) {
		before[g] = p2p_info(_metadata, &gpu[g]);
		EXPECT_EQ(PAGES, p2p_gpu_resident(&gpu[g], buf.p, buf.len));
	}

	p2p_buf_nic_write(_metadata, self, &buf, AFTER);
	ASSERT_EQ(0, p2p_nic_query(&self->nic, buf.handle, buf.p, buf.len,
				   view));
	for (g = 0; g < 2; g++) {
		path[g] = g ? p2p_expect(g) : (int)self->path;
		for (i = g * PAGES; i < (g + 1U) * PAGES; i++) {
			peers[g] += p2p_kind_is_peer(view[i].kind);
			if (path[g] == P2P_EXPECT_UNKNOWN)
				continue;
			EXPECT_EQ(p2p_path_reason(path[g]), view[i].reason);
			EXPECT_EQ(p2p_peer_path(path[g]) ?
				  p2p_peer_kind(path[g]) : P2PTEST_PAGE_HOST,
				  view[i].kind);
		}
		EXPECT_EQ(PAGES - peers[g],
			  p2p_moves(_metadata, &gpu[g], &before[g]));
		EXPECT_EQ((long)peers[g],
			  p2p_gpu_resident(&gpu[g], buf.p, buf.len));
	}
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	/* From GPU to GPU, directly or not */
	EXPECT_LE(0, p2p_gpu_to_vram(&gpu[1], buf.p, buf.len));
	p2p_buf_nic_read(_metadata, self, &buf, AFTER);
	p2p_buf_nic_write(_metadata, self, &buf, OTHER);
	p2p_buf_gpu_read(_metadata, self, &buf, OTHER,
			 p2p_gpu_resident(&gpu[0], buf.p, buf.len));
	p2p_buf_cpu_read(_metadata, &buf, OTHER);
	p2p_buf_free(_metadata, self, &buf);
	EXPECT_EQ(0, p2p_gpu_wait_used(&gpu[1], 0));
	p2p_gpu_close(&gpu[1]);
}

/* A NIC whose driver is loaded with other parameters */

FIXTURE(p2p_reload)
{
	P2P_SELF p2p;
	bool reloaded;
};

FIXTURE_SETUP(p2p_reload)
{
	p2p_setup(_metadata, &self->p2p, NULL);
}

FIXTURE_TEARDOWN_PARENT(p2p_reload)
{
	if (self->reloaded)
		EXPECT_EQ(0, p2p_driver_reload(P2P_NIC_DRIVER, ""));
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/*
 * RAM is within the NIC's reach, the GPU's BAR is not. An IOMMU has addresses in
 * reach for both, which takes 32 bits; a bus address does not pass through it.
 */
TEST_F_TIMEOUT(p2p_reload, out_of_reach, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	__u64 want[P2PTEST_REASON_MAX] = {};
	char params[32], name[P2P_PCI_NAME];
	struct p2ptest_gpu_info before;
	__u64 ram, start, end;
	struct record record;
	struct p2p_buf buf;
	int bits, reason = P2PTEST_REASON_TOPOLOGY;
	bool translated;

	if (!p2p_peer_path(p2p->path))
		SKIP(return, "no path to the GPU");
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, name));
	translated = p2p_pci_translated(name);
	if (translated && p2p->path == P2P_EXPECT_HOST_BRIDGE)
		reason = P2PTEST_REASON_HOST_BRIDGE;
	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, name));
	ASSERT_EQ(0, p2p_pci_bar(name, 2, &start, &end));
	ASSERT_EQ(0, p2p_ram_end(&ram));
	for (bits = translated ? 32 : 24; bits < 63 && (1ULL << bits) < ram;
	     bits++)
		;
	if (reason == P2PTEST_REASON_TOPOLOGY && (1ULL << bits) > start)
		SKIP(return, "RAM ends at %#llx, the BAR begins at %#llx", ram,
		     start);

	p2p_nic_close(&p2p->nic);
	if (!p2p_driver_unload(_metadata, P2P_NIC_DRIVER))
		return;
	self->reloaded = true;
	snprintf(params, sizeof(params), "dma_bits=%d", bits);
	ASSERT_EQ(0, p2p_driver_reload(P2P_NIC_DRIVER, params));
	ASSERT_EQ(0, p2p_nic_open(&p2p->nic, 0));

	p2p_buf_init(_metadata, p2p, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	before = p2p_info(_metadata, &p2p->gpu);
	record_start(_metadata, p2p, &record);
	p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	want[reason] = buf.pages;
	record_expect(_metadata, &record, &buf, want,
		      reason == P2PTEST_REASON_TOPOLOGY);
	p2p_buf_reached(_metadata, p2p, &buf, buf.pages, reason, &before);
	p2p_buf_nic_read(_metadata, p2p, &buf, AFTER);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, p2p, &buf);
	p2p_nic_close(&p2p->nic);
}

/* A transfer is as large as max_transfer says, if it fits the device. */
TEST_F_TIMEOUT(p2p_reload, max_transfer, TIMEOUT_S)
{
	P2P_SELF *p2p = &self->p2p;
	struct p2p_buf buf;
	__u64 start;

	p2p_nic_close(&p2p->nic);
	if (!p2p_driver_unload(_metadata, P2P_NIC_DRIVER))
		return;
	self->reloaded = true;
	p2p_driver_refuses(_metadata, P2P_NIC_DRIVER, "max_transfer=0");
	p2p_driver_refuses(_metadata, P2P_NIC_DRIVER, "max_transfer=4097");

	/* Parts of a page that are neither alike nor aligned: five of them. */
	ASSERT_EQ(0, p2p_driver_reload(P2P_NIC_DRIVER, "max_transfer=1000"));
	ASSERT_EQ(0, p2p_nic_open(&p2p->nic, 0));
	p2p_buf_init(_metadata, p2p, &buf, PAGES, BEFORE);
	p2p_buf_to_vram(_metadata, p2p, &buf);
	p2p_buf_nic_write(_metadata, p2p, &buf, AFTER);
	start = p2p_now_ms();
	p2p_buf_nic_read(_metadata, p2p, &buf, AFTER);
	EXPECT_LE(buf.pages * 5 * 2 * TRANSFER_MS, p2p_now_ms() - start);
	p2p_buf_cpu_read(_metadata, &buf, AFTER);
	p2p_buf_free(_metadata, p2p, &buf);
	p2p_nic_close(&p2p->nic);
}

TEST_HARNESS_MAIN
