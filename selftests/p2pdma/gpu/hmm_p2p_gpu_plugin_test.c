// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the plug-ins of gpu.h: first with a host that is a fake, which anybody
 * can run, then with each GPU that there is
 *
 * $P2PTEST_GPU names the GPU as gpu.h has it. Its absence is an error then, and
 * others are left out.
 */
#include "../p2p_harness.h"
#include "fake.h"
#include "gpu.h"

#include <dirent.h>

#include <drm/drm.h>
#include <drm/nouveau_drm.h>
#include <drm/xe_drm.h>

#define NODES	"/sys/class/kfd/kfd/topology/nodes"
#define UEVENT(node)	"/sys/class/drm/renderD" #node "/device/uevent"
#define PAGES	16UL
#define AT	(4 * P2P_PAGE)
#define LEN	(8 * P2P_PAGE)

/* As sysfs has it; bit 27 of the capabilities is SVM */
#define PROPERTIES(minor) \
	"cpu_cores_count 0\nsimd_count 440\nmem_banks_count 1\n" \
	"capability2 0\ncapability 137375488\n" \
	"drm_render_minor " #minor "\nhive_id 0\n"
#define PROPERTIES_WITHOUT_SVM(minor) \
	"capability2 137375488\ncapability 3157632\n" \
	"drm_render_minor " #minor "\n"
#define UEVENT_OF(pci_name) \
	"DRIVER=some\nPCI_CLASS=30000\nPCI_SLOT_NAME=" pci_name "\nMODALIAS=x\n"

static const struct fake_file nothing[] = { {} };

static const struct fake_file p2ptest_alone[] = {
	{ "/dev/p2ptest_gpu0", .driver = "p2ptest" },
	{}
};

static const struct fake_file nouveau_alone[] = {
	{ "/dev/dri/renderD128", .driver = "nouveau" },
	{}
};

static const struct fake_file amdkfd_alone[] = {
	{ "/dev/kfd", .driver = "kfd" },
	{ "/dev/dri/renderD128", .driver = "amdgpu", .gpu_id = 4242 },
	{ NODES "/0/gpu_id", .text = "4242\n" },
	{ NODES "/0/properties", .text = PROPERTIES(128) },
	{}
};

static const struct fake_file xe_alone[] = {
	{ "/dev/dri/renderD128", .driver = "xe" },
	{}
};

/* Two of each, as far as they have render nodes */
static const struct fake_file many[] = {
	{ "/dev/p2ptest_gpu0", .driver = "p2ptest" },
	{ "/dev/dri/renderD128", .driver = "i915" },
	{ "/dev/dri/renderD129", .driver = "nouveau" },
	{ UEVENT(129), .text = UEVENT_OF("0000:03:00.0") },
	{ "/dev/dri/renderD130", .driver = "xe" },
	{ UEVENT(130), .text = UEVENT_OF("0000:04:00.0") },
	{ "/dev/dri/renderD131", .driver = "amdgpu", .gpu_id = 111 },
	{ UEVENT(131), .text = UEVENT_OF("0000:05:00.0") },
	{ "/dev/dri/renderD132", .driver = "amdgpu", .gpu_id = 222 },
	{ UEVENT(132), .text = UEVENT_OF("0000:06:00.0") },
	{ "/dev/dri/renderD133", .driver = "amdgpu", .gpu_id = 333 },
	{ UEVENT(133), .text = UEVENT_OF("0000:07:00.0") },
	{ "/dev/dri/renderD134", .driver = "nouveau" },
	{ UEVENT(134), .text = UEVENT_OF("0000:08:00.0") },
	{ "/dev/dri/renderD135", .driver = "xe" },
	{ UEVENT(135), .text = UEVENT_OF("0000:09:00.0") },
	{ "/dev/kfd", .driver = "kfd" },
	{ NODES "/0/gpu_id", .text = "0\n" },
	{ NODES "/1/gpu_id", .text = "111\n" },
	{ NODES "/1/properties", .text = PROPERTIES_WITHOUT_SVM(131) },
	{ NODES "/2/gpu_id", .text = "222\n" },
	{ NODES "/2/properties", .text = PROPERTIES(132) },
	{ NODES "/3/gpu_id", .text = "333\n" },
	{ NODES "/3/properties", .text = PROPERTIES(133) },
	{}
};

static unsigned int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	while (dir && readdir(dir))
		n++;
	closedir(dir);
	return n;
}

FIXTURE(plugin)
{
	unsigned char *p;
	unsigned int files;	/* that were open when the test began */
};

#define SELF FIXTURE_DATA(plugin)

FIXTURE_VARIANT(plugin)
{
	const char *name;
	const struct fake_file *alone;
	bool repeats;		/* ioctls that were interrupted */
	const char *first;	/* the device that it takes of many */
	const char *second;	/* the name of another one, and its device */
	const char *other;
};

FIXTURE_VARIANT_ADD(plugin, p2ptest) {
	.name = "p2ptest",
	.alone = p2ptest_alone,
	.first = "/dev/p2ptest_gpu0",
};

FIXTURE_VARIANT_ADD(plugin, nouveau) {
	.name = "nouveau",
	.alone = nouveau_alone,
	.repeats = true,
	.first = "/dev/dri/renderD129",
	.second = "nouveau@0000:08:00.0",
	.other = "/dev/dri/renderD134",
};

FIXTURE_VARIANT_ADD(plugin, amdkfd) {
	.name = "amdkfd",
	.alone = amdkfd_alone,
	.repeats = true,
	.first = "/dev/dri/renderD132",
	.second = "amdkfd@0000:07:00.0",
	.other = "/dev/dri/renderD133",
};

FIXTURE_VARIANT_ADD(plugin, xe) {
	.name = "xe",
	.alone = xe_alone,
	.repeats = true,
	.first = "/dev/dri/renderD130",
	.second = "xe@0000:09:00.0",
	.other = "/dev/dri/renderD135",
};

FIXTURE_SETUP(plugin)
{
	self->p = p2p_alloc(PAGES * P2P_PAGE);
	ASSERT_NE(NULL, self->p);
	self->files = open_files();
}

FIXTURE_TEARDOWN(plugin)
{
	EXPECT_EQ(self->files, open_files());
	EXPECT_EQ(NULL, fake.complaint) {
		TH_LOG("the driver would not take: !(%s)", fake.complaint);
	}
}

/* Says which driver it is about, and why, in one line */
static void expect_reason(struct __test_metadata *_metadata,
			  const struct gpu *gpu, const char *driver,
			  const char *why)
{
	EXPECT_EQ(0, strncmp(gpu->why, driver, strlen(driver)));
	EXPECT_EQ(NULL, strchr(gpu->why, '\n'));
	EXPECT_NE(NULL, strstr(gpu->why, why)) {
		TH_LOG("\"%s\" and not \"%s\"", gpu->why, why);
	}
}

/* All that a plug-in does; what went wrong first */
static int use(struct gpu *gpu, const char *name, unsigned char *p)
{
	long n;
	int ret = gpu_open(gpu, name);

	if (!ret)
		ret = gpu_move(gpu, p + AT, LEN);
	if (ret)
		return ret;
	n = gpu_resident(gpu, p, PAGES * P2P_PAGE);
	if (n < 0)
		return n;
	return n == LEN / P2P_PAGE ? 0 : -ERANGE;
}

TEST_F(plugin, absent)
{
	struct gpu gpu;

	fake_start(nothing);
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, variant->name));
	expect_reason(_metadata, &gpu, variant->name, ": no ");
	EXPECT_EQ(NULL, gpu.ops);
	EXPECT_EQ(-1, gpu.fd);
	gpu_close(&gpu);
}

/* The range that was asked for, and no other */
TEST_F(plugin, moves)
{
	struct gpu gpu;
	size_t i;

	fake_start(variant->alone);
	ASSERT_EQ(0, gpu_open(&gpu, variant->name))
		TH_LOG("%s", gpu.why);
	EXPECT_EQ(0, gpu_resident(&gpu, self->p, PAGES * P2P_PAGE));
	ASSERT_EQ(0, gpu_move(&gpu, self->p + AT, LEN))
		TH_LOG("%s", gpu.why);
	for (i = 0; i < PAGES; i++)
		EXPECT_EQ(i >= AT / P2P_PAGE && i < (AT + LEN) / P2P_PAGE,
			  gpu_resident(&gpu, self->p + i * P2P_PAGE, P2P_PAGE));
	EXPECT_EQ(0, gpu_move(&gpu, self->p, P2P_PAGE));
	EXPECT_EQ(1, gpu_resident(&gpu, self->p, P2P_PAGE));
	gpu_close(&gpu);
	EXPECT_EQ(NULL, gpu.ops);
	EXPECT_EQ(-1, gpu.fd);
}

/* A range that no driver takes is reported, and the GPU goes on */
TEST_F(plugin, bad_range)
{
	struct gpu gpu;

	fake_start(variant->alone);
	ASSERT_EQ(0, gpu_open(&gpu, variant->name));
	EXPECT_EQ(-EINVAL, gpu_move(&gpu, self->p + 1, P2P_PAGE));
	expect_reason(_metadata, &gpu, variant->name, strerror(EINVAL));
	EXPECT_NE(NULL, fake.complaint);
	fake.complaint = NULL;
	EXPECT_EQ(0, gpu_move(&gpu, self->p, P2P_PAGE));
	gpu_close(&gpu);
}

/* How many calls it takes if all of them succeed */
static unsigned int calls(struct __test_metadata *_metadata, SELF *self,
			  const struct fake_file *files, const char *name)
{
	struct gpu gpu;

	fake_start(files);
	EXPECT_EQ(0, use(&gpu, name, self->p)) {
		TH_LOG("%s", gpu.why);
	}
	gpu_close(&gpu);
	EXPECT_LT(2U, fake.calls);
	return fake.calls;
}

/* Has a call that failed so been the end of the search for a GPU? */
static bool not_found(int err)
{
	if (!fake.not_opened)
		return fake.failed == DRM_IOCTL_VERSION;
	if (strncmp(fake.not_opened, "/dev/", strlen("/dev/")))
		return strstr(fake.not_opened, "gpu_id") && err == ENOENT;
	return err == ENOENT || err == ENXIO || err == ENODEV;
}

/* It is reported as what it is, and without SVM there is no GPU */
static void expect_failed(struct __test_metadata *_metadata,
			  const struct gpu *gpu, const char *driver, int ret,
			  int err)
{
	if (not_found(err)) {
		EXPECT_EQ(-ENODEV, ret);
		expect_reason(_metadata, gpu, driver, ": no ");
		return;
	}
	EXPECT_EQ(fake.failed == DRM_IOCTL_NOUVEAU_SVM_INIT ? -ENODEV : -err,
		  ret);
	expect_reason(_metadata, gpu, driver, strerror(err));
}

/*
 * Each call fails with each of these in turn: that is reported, or there is no such
 * GPU, nothing is left over, and the next attempt succeeds
 */
TEST_F(plugin, calls_fail)
{
	static const int errors[] = {
		EPERM, ENOENT, EIO, ENXIO, ENOMEM, EACCES, EFAULT, EBUSY,
		ENODEV, EINVAL, EMFILE, ENOTTY, ENOSPC, ENODATA, EOPNOTSUPP,
		EBADF, ECANCELED,
	};
	unsigned int i, call, n;
	struct gpu gpu;
	int ret;

	n = calls(_metadata, self, variant->alone, variant->name);
	for (call = 1; call <= n; call++) {
		for (i = 0; i < ARRAY_SIZE(errors); i++) {
			fake_start(variant->alone);
			fake.fail_at = call;
			fake.fail_calls = 1;
			fake.fail_errno = errors[i];
			ret = use(&gpu, variant->name, self->p);
			expect_failed(_metadata, &gpu, variant->name, ret,
				      errors[i]);
			if (!gpu.ops)
				EXPECT_EQ(-1, gpu.fd);
			gpu_close(&gpu);
			EXPECT_EQ(self->files, open_files());

			fake.fail_at = 0;
			EXPECT_EQ(0, use(&gpu, variant->name, self->p)) {
				TH_LOG("after call %u: %s", call, gpu.why);
			}
			gpu_close(&gpu);
			ASSERT_EQ(0, _metadata->exit_code)
				TH_LOG("call %u fails: %s", call,
				       strerror(errors[i]));
		}
	}
}

/* An ioctl that is interrupted some times is repeated, and then succeeds */
TEST_F(plugin, interrupted)
{
	static const int errors[] = { EINTR, EAGAIN };
	unsigned int i, call, n, seen = 0;
	struct gpu gpu;
	int ret;

	n = calls(_metadata, self, variant->alone, variant->name);
	for (call = 1; call <= n; call++) {
		for (i = 0; i < ARRAY_SIZE(errors); i++) {
			fake_start(variant->alone);
			fake.fail_at = call;
			fake.fail_calls = 3;
			fake.fail_errno = errors[i];
			ret = use(&gpu, variant->name, self->p);
			if (variant->repeats && fake.calls == n + 3) {
				EXPECT_EQ(0, ret);
				seen++;
			} else {
				EXPECT_EQ(-errors[i], ret);
			}
			gpu_close(&gpu);
		}
	}
	EXPECT_EQ(variant->repeats, seen >= 4);
}

/* The same for ever: the plug-in gives up, and says so */
TEST_F(plugin, interrupted_for_ever)
{
	static const int errors[] = { EINTR, EAGAIN };
	unsigned int i, call, n;
	struct gpu gpu;
	int ret;

	n = calls(_metadata, self, variant->alone, variant->name);
	for (call = 1; call <= n; call++) {
		for (i = 0; i < ARRAY_SIZE(errors); i++) {
			fake_start(variant->alone);
			fake.fail_at = call;
			fake.fail_calls = UINT32_MAX;
			fake.fail_errno = errors[i];
			ret = use(&gpu, variant->name, self->p);
			expect_failed(_metadata, &gpu, variant->name, ret,
				      errors[i]);
			EXPECT_GT(n + 200, fake.calls);
			gpu_close(&gpu);
			EXPECT_EQ(self->files, open_files());
		}
	}
}

/* Of several devices, the first one or the one that was named */
TEST_F(plugin, of_many)
{
	char name[64];
	struct gpu gpu;

	fake_start(many);
	EXPECT_EQ(0, use(&gpu, variant->name, self->p)) {
		TH_LOG("%s", gpu.why);
	}
	EXPECT_STREQ(variant->first, fake.used);
	gpu_close(&gpu);
	if (!variant->second)
		return;
	fake_start(many);
	EXPECT_EQ(0, use(&gpu, variant->second, self->p)) {
		TH_LOG("%s", gpu.why);
	}
	EXPECT_STREQ(variant->other, fake.used);
	gpu_close(&gpu);

	snprintf(name, sizeof(name), "%s@0000:ff:00.0", variant->name);
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, name));
	gpu_close(&gpu);
	/* Part of an address is none */
	snprintf(name, sizeof(name), "%.*s", (int)strlen(variant->second) - 1,
		 variant->second);
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, name));
	gpu_close(&gpu);
}

FIXTURE(fake_host)
{
	unsigned int files;
};

FIXTURE_SETUP(fake_host)
{
	self->files = open_files();
}

FIXTURE_TEARDOWN(fake_host)
{
	EXPECT_EQ(self->files, open_files());
	EXPECT_EQ(NULL, fake.complaint);
}

TEST_F(fake_host, names)
{
	static const char *const unknown[] = {
		"amdgpu", "xe2", "x", "@0000:03:00.0", "none", "NOUVEAU",
	};
	struct gpu gpu;
	size_t i;

	fake_start(many);
	for (i = 0; i < ARRAY_SIZE(unknown); i++) {
		EXPECT_EQ(-EINVAL, gpu_open(&gpu, unknown[i]));
		EXPECT_NE(NULL, strstr(gpu.why, unknown[i]));
		gpu_close(&gpu);
	}
	EXPECT_EQ(0, gpu_open(&gpu, NULL));
	EXPECT_EQ(&p2ptest_gpu_ops, gpu.ops);
	gpu_close(&gpu);
	fake_start(amdkfd_alone);
	EXPECT_EQ(0, gpu_open(&gpu, ""));
	EXPECT_EQ(&amdkfd_gpu_ops, gpu.ops);
	gpu_close(&gpu);
}

/* Each of them says why it is not there, in the same line */
TEST_F(fake_host, no_gpu)
{
	struct gpu gpu;
	size_t i;

	fake_start(nothing);
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, NULL));
	for (i = 0; gpu_drivers[i]; i++)
		EXPECT_NE(NULL, strstr(gpu.why, gpu_drivers[i]->driver));
	EXPECT_EQ(NULL, strchr(gpu.why, '\n'));
	gpu_close(&gpu);
}

/* One that is there and fails is not passed over */
TEST_F(fake_host, broken_gpu)
{
	struct gpu gpu;

	fake_start(xe_alone);
	/* Each driver looks at the node first: nouveau, and amdkfd has no file */
	fake.fail_at = 5;
	fake.fail_calls = 1;
	fake.fail_errno = EIO;
	EXPECT_EQ(-EIO, gpu_open(&gpu, NULL));
	expect_reason(_metadata, &gpu, "xe", "XE_DEVICE_QUERY: ");
	gpu_close(&gpu);
}

TEST_F(fake_host, amdkfd_has_cpus_only)
{
	static const struct fake_file files[] = {
		{ "/dev/kfd", .driver = "kfd" },
		{ NODES "/0/gpu_id", .text = "0\n" },
		{ NODES "/1/gpu_id", .text = "0\n" },
		{}
	};
	struct gpu gpu;

	fake_start(files);
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, "amdkfd"));
	expect_reason(_metadata, &gpu, "amdkfd", "no GPU in ");
	gpu_close(&gpu);
}

TEST_F(fake_host, amdkfd_has_no_svm)
{
	static const struct fake_file files[] = {
		{ "/dev/kfd", .driver = "kfd" },
		{ "/dev/dri/renderD128", .driver = "amdgpu", .gpu_id = 9 },
		{ NODES "/0/gpu_id", .text = "9\n" },
		{ NODES "/0/properties", .text = PROPERTIES_WITHOUT_SVM(128) },
		{}
	};
	struct gpu gpu;

	fake_start(files);
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, "amdkfd"));
	expect_reason(_metadata, &gpu, "amdkfd", "no SVM");
	gpu_close(&gpu);
}

/* A container may look at some GPUs and not at others */
TEST_F(fake_host, amdkfd_may_not_look_at_one)
{
	struct gpu gpu;

	fake_start(many);
	/* /dev/kfd, gpu_id of nodes 0 and 1, properties of node 1 */
	fake.fail_at = 4;
	fake.fail_calls = 1;
	fake.fail_errno = EPERM;
	EXPECT_EQ(0, gpu_open(&gpu, "amdkfd")) {
		TH_LOG("%s", gpu.why);
	}
	EXPECT_EQ(222U, gpu.kfd.id);
	gpu_close(&gpu);
}

TEST_F(fake_host, xe_has_no_svm)
{
	struct gpu gpu;

	fake_start(xe_alone);
	fake.xe_flags = DRM_XE_QUERY_CONFIG_FLAG_HAS_VRAM;
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, "xe"));
	expect_reason(_metadata, &gpu, "xe", "no SVM");
	gpu_close(&gpu);
}

TEST_F(fake_host, xe_has_no_vram)
{
	struct gpu gpu;

	fake_start(xe_alone);
	fake.xe_regions = 1;
	EXPECT_EQ(-ENODEV, gpu_open(&gpu, "xe"));
	expect_reason(_metadata, &gpu, "xe", "no memory of its own");
	gpu_close(&gpu);
}

/* An answer that lacks what is to be read from it is not read */
TEST_F(fake_host, xe_answers_too_little)
{
	struct gpu gpu;

	fake_start(xe_alone);
	fake.xe_short = 4 * sizeof(__u64);
	EXPECT_EQ(-EBADMSG, gpu_open(&gpu, "xe"));
	expect_reason(_metadata, &gpu, "xe", "XE_DEVICE_QUERY: ");
	gpu_close(&gpu);
}

/* The object goes, whether or not it could be exported, and the file stays */
TEST_F(fake_host, xe_dma_buf)
{
	struct gpu gpu;
	unsigned int at;
	int fd;

	fake_start(xe_alone);
	ASSERT_EQ(0, gpu_open(&gpu, "xe"));
	fd = gpu.ops->dma_buf(&gpu, LEN);
	ASSERT_LE(0, fd)
		TH_LOG("%s", gpu.why);
	EXPECT_EQ(0, close(fd));
	EXPECT_EQ(0U, fake.objects);
	for (at = 1; at <= 2; at++) {
		fake.fail_at = fake.calls + at;
		fake.fail_calls = 1;
		fake.fail_errno = ENOMEM;
		EXPECT_EQ(-ENOMEM, gpu.ops->dma_buf(&gpu, LEN));
		expect_reason(_metadata, &gpu, "xe",
			      at == 1 ? "XE_GEM_CREATE: " :
					"PRIME_HANDLE_TO_FD: ");
		EXPECT_EQ(0U, fake.objects);
	}
	gpu_close(&gpu);
}

/* GPUs that are really there */

FIXTURE(present)
{
	struct gpu gpu;
};

FIXTURE_VARIANT(present)
{
	const char *driver;
};

FIXTURE_VARIANT_ADD(present, p2ptest) { "p2ptest" };
FIXTURE_VARIANT_ADD(present, nouveau) { "nouveau" };
FIXTURE_VARIANT_ADD(present, amdkfd) { "amdkfd" };
FIXTURE_VARIANT_ADD(present, xe) { "xe" };

FIXTURE_SETUP(present)
{
	const char *name = getenv("P2PTEST_GPU");
	const size_t len = strlen(variant->driver);
	int ret;

	if (!p2p_start(_metadata))
		return;
	if (name && !*name)
		name = NULL;
	if (name && (strncmp(name, variant->driver, len) ||
		     (name[len] && name[len] != '@')))
		SKIP(return, "P2PTEST_GPU is %s", name);
	ret = gpu_open(&self->gpu, name ? name : variant->driver);
	if (ret == -ENODEV && !name)
		SKIP(return, "%s", self->gpu.why);
	ASSERT_EQ(0, ret)
		TH_LOG("%s", self->gpu.why);
}

FIXTURE_TEARDOWN(present)
{
	gpu_close(&self->gpu);
}

/* To the GPU, and home as the CPU touches it */
TEST_F_TIMEOUT(present, moves, TIMEOUT_S)
{
	struct p2p_buf buf;
	int i;

	p2p_buf_alloc(_metadata, &buf, PAGES, BEFORE);
	for (i = 0; i < 3; i++) {
		EXPECT_EQ(0, p2p_device_private(buf.p, buf.len));
		ASSERT_EQ(0, gpu_move(&self->gpu, buf.p, buf.len))
			TH_LOG("%s", self->gpu.why);
		EXPECT_EQ((long)PAGES, gpu_resident(&self->gpu, buf.p,
						    buf.len)) {
			TH_LOG("%s has not moved all pages", variant->driver);
		}
		EXPECT_EQ((long)PAGES, p2p_device_private(buf.p, buf.len));
		p2p_buf_cpu_read(_metadata, &buf, BEFORE + i);
		p2p_fill(buf.p, BEFORE + i + 1, 0, buf.len);
	}
	EXPECT_EQ(0, munmap(buf.p, buf.len));
}

TEST_HARNESS_MAIN
