// SPDX-License-Identifier: GPL-2.0
/*
 * Test of the peer-to-peer DMA test devices: calls at random, by somebody who
 * wants what others have
 *
 * A victim has a secret in VRAM and in host memory, and regions of it, in files
 * that the attacker has as well. The attacker calls the devices: some calls are any
 * bits, some are nearly right. He knows all addresses and handles. Each call must
 * end with one of the documented errors. The secret must not change, and must not
 * turn up with the attacker.
 *
 *	P2P_STRESS_SEED		1 unless it is set
 *	P2P_STRESS_OPS		calls of each test
 */
#include "p2p_harness.h"

#include <sys/ioctl.h>

#include <linux/p2ptest_rdma.h>

#define RDMA_DRIVER	"p2ptest_rdma"

#define OPS		100000UL
#define PAGES		16U
#define SECRET		0x5ec2e75ec2e75ec2ULL

/* Calls with the same file */
#define REOPEN		2048U

/* Calls until all of the attacker's memory is searched for the secret */
#define LOOK		4096U

/* Transfers of the NIC take longer than all other calls, so few may succeed */
#define TRANSFER_SELDOM	2000U

enum { GPU, NIC, RDMA, DEVICES, CARD = DEVICES, HANDLES };

static const char *const driver[] = {
	P2P_GPU_DRIVER, P2P_NIC_DRIVER, RDMA_DRIVER,
};

/* What attacker and victim share */
struct shared {
	unsigned char *secret;	/* address in the victim */
	__u32 handle[HANDLES];	/* CARD: of the NIC as a card */
	bool ready;
	bool end;
};

FIXTURE(p2p_fuzz)
{
	int fd[DEVICES];
	struct p2ptest_gpu_info info;
	struct shared *shared;
	pid_t victim;
};

#define SELF FIXTURE_DATA(p2p_fuzz)

#define load(x)		__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define store(x, v)	__atomic_store_n(&(x), v, __ATOMIC_RELEASE)

static void region_init(struct __test_metadata *_metadata, const int *fd,
			void *p, size_t len, __u32 *handle)
{
	struct p2ptest_nic_reg reg = {
		.addr = (uintptr_t)p,
		.len = len,
		.flags = P2PTEST_NIC_MR_WRITE,
	};
	struct p2ptest_nic_pin pin = {
		.addr = reg.addr, .len = reg.len, .flags = reg.flags,
	};
	struct p2ptest_rdma_reg rdma = {
		.addr = (uintptr_t)p,
		.len = len,
		.flags = P2PTEST_RDMA_MR_ODP | P2PTEST_RDMA_MR_WRITE,
	};

	if (fd[NIC] >= 0) {
		ASSERT_EQ(0, ioctl(fd[NIC], P2PTEST_NIC_REG, &reg));
		handle[NIC] = reg.handle;
		ASSERT_EQ(0, ioctl(fd[NIC], P2PTEST_NIC_PIN, &pin));
		handle[CARD] = pin.handle;
	}
	if (fd[RDMA] >= 0) {
		ASSERT_EQ(0, ioctl(fd[RDMA], P2PTEST_RDMA_REG, &rdma));
		handle[RDMA] = rdma.handle;
	}
}

static void secret_check(struct __test_metadata *_metadata, const __u64 *secret,
			 size_t len)
{
	size_t i;

	for (i = 0; i < len / sizeof(*secret); i++)
		ASSERT_EQ(SECRET, secret[i]);
}

static void victim(struct __test_metadata *_metadata, SELF *self)
{
	const struct p2p_gpu gpu = { .fd = self->fd[GPU] };
	const size_t len = PAGES * P2P_PAGE;
	struct shared *shared = self->shared;
	__u64 *secret = p2p_alloc(len), *seen = malloc(len);
	size_t i;

	ASSERT_NE(NULL, secret);
	ASSERT_NE(NULL, seen);
	for (i = 0; i < len / sizeof(*secret); i++)
		secret[i] = SECRET;
	shared->secret = (unsigned char *)secret;
	region_init(_metadata, self->fd, secret, len, shared->handle);
	ASSERT_LE(0, p2p_gpu_to_vram(&gpu, secret, len / 2));
	store(shared->ready, true);
	while (!load(shared->end)) {
		ASSERT_LE(0, p2p_gpu_read(&gpu, secret, seen, len));
		secret_check(_metadata, seen, len);
		p2p_sleep_ms(100);
		/* The attacker may have needed the room */
		ASSERT_LE(0, p2p_gpu_to_vram(&gpu, secret, len / 2));
	}
	secret_check(_metadata, secret, len);
	_exit(0);
}

FIXTURE_SETUP(p2p_fuzz)
{
	struct p2p_gpu gpu;
	pid_t pid;
	int dev;

	if (!p2p_start(_metadata))
		return;
	for (dev = 0; dev < DEVICES; dev++) {
		self->fd[dev] = p2p_dev_open(driver[dev], 0);
		if (self->fd[dev] == -ENOENT)
			continue;
		ASSERT_LE(0, self->fd[dev]);
	}
	if (self->fd[GPU] < 0)
		SKIP(return, "no test GPU: no /dev/" P2P_GPU_DRIVER "<N>");
	gpu.fd = self->fd[GPU];
	ASSERT_EQ(0, p2p_gpu_info(&gpu, &self->info));
	ASSERT_EQ(0U, self->info.pages_used)
		TH_LOG("something else uses the test GPU");
	self->shared = mmap(NULL, P2P_PAGE, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->shared);
	/* The child shares the fixture's data */
	pid = p2p_fork_child(_metadata);
	if (!pid)
		victim(_metadata, self);
	self->victim = pid;
	while (!load(self->shared->ready)) {
		ASSERT_EQ(0, waitpid(pid, NULL, WNOHANG))
			TH_LOG("the victim has ended");
		p2p_sleep_ms(1);
	}
}

FIXTURE_TEARDOWN_PARENT(p2p_fuzz)
{
	p2p_gpu_teardown(_metadata, &self->info);
}

/* The attacker */

/* What he has, each between two pages that nobody may touch */
enum { PLAIN, READ_ONLY, NONE, SHARED, BIG, ARENAS };

struct attacker {
	SELF *self;
	int fd[DEVICES];
	unsigned int random;
	unsigned char *arena[ARENAS];
	size_t len[ARENAS];
	unsigned char *out;	/* what calls write to */
	size_t out_len;
	__u32 handle[HANDLES];
	__u64 arg[16];
};

static void *guarded(struct __test_metadata *_metadata, size_t len, int prot,
		     int flags)
{
	unsigned char *room = mmap(NULL, len + 2 * P2P_HUGE, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t p = ((uintptr_t)room + P2P_HUGE) & ~(P2P_HUGE - 1);

	ASSERT_NE(MAP_FAILED, (void *)room);
	ASSERT_EQ((void *)p, mmap((void *)p, len, prot, flags | MAP_ANONYMOUS |
				  MAP_FIXED, -1, 0));
	return (void *)p;
}

static void attacker_init(struct __test_metadata *_metadata, SELF *self,
			  struct attacker *a)
{
	static const int prot[] = {
		[PLAIN]		= PROT_READ | PROT_WRITE,
		[READ_ONLY]	= PROT_READ,
		[NONE]		= PROT_NONE,
		[SHARED]	= PROT_READ | PROT_WRITE,
		[BIG]		= PROT_READ | PROT_WRITE,
	};
	const char *seed = getenv("P2P_STRESS_SEED");
	int i;

	memset(a, 0, sizeof(*a));
	a->self = self;
	a->random = seed && *seed ? strtoul(seed, NULL, 0) : 1;
	for (i = 0; i < ARENAS; i++) {
		a->len[i] = i == BIG ? P2P_HUGE : PAGES * P2P_PAGE;
		a->arena[i] = guarded(_metadata, a->len[i], prot[i],
				      i == SHARED ? MAP_SHARED : MAP_PRIVATE);
	}
	madvise(a->arena[BIG], a->len[BIG], MADV_HUGEPAGE);
	a->out_len = PAGES * P2P_PAGE;
	a->out = guarded(_metadata, a->out_len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE);
	for (i = 0; i < DEVICES; i++)
		a->fd[i] = -1;
}

/*
 * Files of his own, and a region in each. What he has registered so far ends, before
 * he has all of the machine's memory.
 */
static void attacker_open(struct __test_metadata *_metadata, struct attacker *a)
{
	int dev;

	for (dev = 0; dev < DEVICES; dev++) {
		if (a->self->fd[dev] < 0)
			continue;
		if (a->fd[dev] >= 0)
			close(a->fd[dev]);
		a->fd[dev] = p2p_dev_open(driver[dev], 0);
		ASSERT_LE(0, a->fd[dev]);
	}
	region_init(_metadata, a->fd, a->arena[PLAIN], a->len[PLAIN], a->handle);
}

static unsigned int dice(struct attacker *a, unsigned int sides)
{
	return rand_r(&a->random) % sides;
}

static __u64 bits(struct attacker *a)
{
	return (__u64)rand_r(&a->random) << 42 ^ (__u64)rand_r(&a->random) << 21 ^
	       rand_r(&a->random);
}

static __u64 address(struct attacker *a)
{
	static const __u64 odd[] = {
		0, 1, P2P_PAGE, 0x7ffffffff000ULL, 0x7ffffffffff8ULL,
		0x800000000000ULL, 0xffff888000000000ULL, 0xffffffff81000000ULL,
		~0ULL, ~0ULL << 12,
	};
	int i = dice(a, ARENAS);
	__u64 at;

	switch (dice(a, 8)) {
	case 0:
		return odd[dice(a, ARRAY_SIZE(odd))];
	case 1:
		return (uintptr_t)a->self->shared->secret + dice(a, PAGES) * P2P_PAGE;
	case 2:
		return bits(a);
	default:
		at = dice(a, 4) ? dice(a, a->len[i] / P2P_PAGE) * P2P_PAGE :
				  dice(a, a->len[i]);
		return (uintptr_t)a->arena[i] + at;
	}
}

static __u64 length(struct attacker *a)
{
	static const __u64 odd[] = {
		0, 1, P2P_PAGE - 1, P2P_PAGE + 1, 1ULL << 30, 1ULL << 40,
		1ULL << 63, ~0ULL, ~0ULL << 12,
	};

	switch (dice(a, 4)) {
	case 0:
		return odd[dice(a, ARRAY_SIZE(odd))];
	case 1:
		return bits(a) >> dice(a, 64);
	default:
		return dice(a, PAGES) * P2P_PAGE;
	}
}

static __u64 pointer(struct attacker *a)
{
	return dice(a, 4) ? (uintptr_t)a->out + 8 * dice(a, 8) : address(a);
}

static __u32 flags(struct attacker *a, __u32 valid)
{
	return dice(a, 16) ? dice(a, valid + 1) : bits(a);
}

static __u32 handle(struct attacker *a, int kind)
{
	switch (dice(a, 8)) {
	case 0:
		return a->self->shared->handle[kind];
	case 1:
		return dice(a, 64);
	case 2:
		return bits(a);
	default:
		return a->handle[kind];
	}
}

static __u32 pad(struct attacker *a)
{
	return dice(a, 16) ? 0 : bits(a);
}

/* Few that may succeed in what takes so long */
static __u64 transfer_length(struct attacker *a)
{
	__u64 len = length(a);

	if (!len || len > 1ULL << 30 || !dice(a, TRANSFER_SELDOM))
		return len;
	return len << 34;
}

static unsigned long gpu_call(struct attacker *a)
{
	union {
		__u64 *arg;
		struct p2ptest_gpu_migrate *migrate;
		struct p2ptest_gpu_access *access;
		struct p2ptest_gpu_lookup *lookup;
		struct p2ptest_gpu_window *window;
	} u = { .arg = a->arg };

	switch (dice(a, 8)) {
	case 0:
		return P2PTEST_GPU_INFO;
	case 1:
		u.window->start = dice(a, 40) * P2P_HUGE + dice(a, 2);
		u.window->size = dice(a, 40) * P2P_HUGE;
		return P2PTEST_GPU_WINDOW;
	case 2:
		*u.arg = dice(a, 4);
		return P2PTEST_GPU_INJECT_BAD_ALIAS;
	case 3:
		u.lookup->addr = address(a);
		u.lookup->len = length(a);
		u.lookup->locs = pointer(a);
		return P2PTEST_GPU_LOOKUP;
	case 4:
	case 5:
		u.migrate->addr = address(a);
		u.migrate->len = length(a);
		u.migrate->dir = flags(a, 2);
		u.migrate->pad = pad(a);
		return P2PTEST_GPU_MIGRATE;
	default:
		u.access->addr = address(a);
		u.access->len = length(a);
		u.access->buf = pointer(a);
		u.access->flags = flags(a, 1);
		u.access->pad = pad(a);
		return P2PTEST_GPU_ACCESS;
	}
}

static unsigned long nic_call(struct attacker *a)
{
	union {
		struct p2ptest_nic_reg *reg;
		struct p2ptest_nic_dereg *dereg;
		struct p2ptest_nic_xfer *xfer;
		struct p2ptest_nic_query *query;
		struct p2ptest_nic_pin *pin;
		struct p2ptest_nic_unpin *unpin;
		struct p2ptest_nic_copy *copy;
		struct p2ptest_nic_pinned *pinned;
		__u64 *arg;
	} u = { .arg = a->arg };

	switch (dice(a, 10)) {
	case 0:
		u.reg->addr = address(a);
		u.reg->len = length(a);
		u.reg->flags = flags(a, 3);
		return P2PTEST_NIC_REG;
	case 1:
		u.dereg->handle = handle(a, NIC);
		u.dereg->pad = pad(a);
		/* He keeps one, and has the others at random */
		return u.dereg->handle == a->handle[NIC] && !u.dereg->pad ?
			       P2PTEST_NIC_QUERY : P2PTEST_NIC_DEREG;
	case 2:
		u.query->addr = address(a);
		u.query->len = length(a);
		u.query->pages = pointer(a);
		u.query->handle = handle(a, NIC);
		u.query->pad = pad(a);
		return P2PTEST_NIC_QUERY;
	case 3:
		u.pin->addr = address(a);
		u.pin->len = length(a);
		u.pin->flags = flags(a, 7);
		return P2PTEST_NIC_PIN;
	case 4:
		u.unpin->handle = handle(a, CARD);
		u.unpin->pad = pad(a);
		return u.unpin->handle == a->handle[CARD] && !u.unpin->pad ?
			       P2PTEST_NIC_PINNED : P2PTEST_NIC_UNPIN;
	case 5:
		u.pinned->pages = pointer(a);
		u.pinned->nr = dice(a, 4) ? dice(a, 2 * PAGES) : bits(a);
		u.pinned->handle = handle(a, CARD);
		u.pinned->pad = pad(a);
		return P2PTEST_NIC_PINNED;
	case 6:
	case 7:
		u.copy->src_offset = dice(a, 4) ? dice(a, PAGES * P2P_PAGE) : bits(a);
		u.copy->dst_offset = dice(a, 4) ? dice(a, PAGES * P2P_PAGE) : bits(a);
		u.copy->len = transfer_length(a);
		u.copy->src = handle(a, CARD);
		u.copy->dst = handle(a, CARD);
		u.copy->pad = pad(a);
		return P2PTEST_NIC_COPY;
	default:
		u.xfer->addr = address(a);
		u.xfer->len = transfer_length(a);
		u.xfer->buf = pointer(a);
		u.xfer->handle = handle(a, NIC);
		u.xfer->flags = flags(a, 1);
		return P2PTEST_NIC_XFER;
	}
}

static unsigned long rdma_call(struct attacker *a)
{
	union {
		struct p2ptest_rdma_reg *reg;
		struct p2ptest_rdma_dereg *dereg;
		struct p2ptest_rdma_rereg *rereg;
		struct p2ptest_rdma_xfer *xfer;
		struct p2ptest_rdma_fault *fault;
		struct p2ptest_rdma_query *query;
		__u64 *arg;
	} u = { .arg = a->arg };

	switch (dice(a, 8)) {
	case 0:
		u.reg->addr = dice(a, 8) ? address(a) : 0;
		u.reg->len = length(a);
		u.reg->flags = flags(a, 63);
		return P2PTEST_RDMA_REG;
	case 1:
		u.dereg->handle = handle(a, RDMA);
		u.dereg->pad = pad(a);
		return u.dereg->handle == a->handle[RDMA] && !u.dereg->pad ?
			       P2PTEST_RDMA_QUERY : P2PTEST_RDMA_DEREG;
	case 2:
		u.rereg->handle = handle(a, RDMA);
		u.rereg->flags = dice(a, 2) ? P2PTEST_RDMA_MR_WINDOWS :
					      flags(a, 63);
		return P2PTEST_RDMA_REREG;
	case 3:
		u.query->addr = address(a);
		u.query->len = length(a);
		u.query->pages = pointer(a);
		u.query->handle = handle(a, RDMA);
		u.query->hold = dice(a, 256) ? 0 : bits(a);
		return P2PTEST_RDMA_QUERY;
	case 4:
	case 5:
		u.fault->addr = address(a);
		u.fault->len = length(a);
		u.fault->handle = handle(a, RDMA);
		u.fault->flags = flags(a, 3);
		return P2PTEST_RDMA_FAULT;
	default:
		u.xfer->addr = address(a);
		u.xfer->len = transfer_length(a);
		u.xfer->buf = pointer(a);
		u.xfer->handle = handle(a, RDMA);
		u.xfer->flags = flags(a, 1);
		u.xfer->pad = pad(a);
		return P2PTEST_RDMA_XFER;
	}
}

static unsigned long (*const nearly_right[])(struct attacker *a) = {
	gpu_call, nic_call, rdma_call,
};

static unsigned long any_call(struct attacker *a, int dev)
{
	static const unsigned int magic[] = {
		P2PTEST_GPU_IOC_MAGIC, P2PTEST_NIC_IOC_MAGIC,
		P2PTEST_RDMA_IOC_MAGIC,
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(a->arg); i++)
		a->arg[i] = bits(a) >> dice(a, 64);
	if (!dice(a, 8))
		return (__u32)bits(a);
	if (!dice(a, 8))
		return nearly_right[dev](a) ^ 1UL << dice(a, 32);
	return _IOC(dice(a, 4), magic[dev], dice(a, 8), 8 * dice(a, 9));
}

/* What the calls may say, as their documentation has it */
static bool is_known(int dev, int err)
{
	switch (err) {
	case 0:
	case EINVAL:
	case EFAULT:
	case EPERM:
	case ENOTTY:
		return true;
	case EBUSY:
		return dev == GPU;
	case EOPNOTSUPP:
	case ENOENT:
	case E2BIG:
		return dev != GPU;
	case EACCES:
	case ENOSPC:
		return dev == RDMA;
	default:
		return false;
	}
}

/* Has he got hold of a page of the secret? */
static bool has_secret(const void *p, size_t len)
{
	const __u64 *word = p;
	size_t i;

	for (i = 0; i < len / sizeof(*word); i++)
		if (word[i] == SECRET)
			return true;
	return false;
}

/* To look brings memory home from VRAM, so not after each call */
static bool attacker_has_secret(const struct attacker *a)
{
	int i;

	for (i = 0; i < ARENAS; i++)
		if (i != NONE && has_secret(a->arena[i], a->len[i]))
			return true;
	return has_secret(a->out, a->out_len);
}

static void attack(struct __test_metadata *_metadata, SELF *self, int dev)
{
	const char *text = getenv("P2P_STRESS_OPS");
	unsigned long ops = text && *text ? strtoul(text, NULL, 0) : OPS;
	unsigned long i, cmd, ends[256] = { };
	unsigned long counts[2] = { };
	struct attacker a;
	bool near;
	int fd, err;
	void *arg;

	if (self->fd[dev] < 0)
		SKIP(return, "no /dev/%s0", driver[dev]);
	attacker_init(_metadata, self, &a);
	for (i = 0; i < ops; i++) {
		if (!(i % REOPEN))
			attacker_open(_metadata, &a);
		memset(a.arg, 0, sizeof(a.arg));
		near = dice(&a, 2);
		cmd = near ? nearly_right[dev](&a) : any_call(&a, dev);
		arg = dice(&a, 32) ? (void *)a.arg : (void *)address(&a);
		fd = dice(&a, 8) ? a.fd[dev] : self->fd[dev];
		err = ioctl(fd, cmd, arg) < 0 ? errno : 0;
		counts[near] += !err;
		ends[err & 255]++;
		ASSERT_TRUE(is_known(dev, err))
			TH_LOG("call %lu, %#lx: %s", i, cmd, strerror(err));
		if (!(i % 8))
			ASSERT_FALSE(has_secret(a.out, a.out_len))
				TH_LOG("call %lu, %#lx", i, cmd);
		if (i % LOOK == LOOK - 1 || (!err && cmd == P2PTEST_NIC_COPY))
			ASSERT_FALSE(attacker_has_secret(&a))
				TH_LOG("call %lu, %#lx", i, cmd);
	}
	ASSERT_EQ(0, mprotect(a.arena[NONE], a.len[NONE], PROT_READ));
	EXPECT_FALSE(has_secret(a.arena[NONE], a.len[NONE]));
	store(self->shared->end, true);
	p2p_wait_child(_metadata, self->victim);
	TH_LOG("%lu calls of the %s; %lu of any bits and %lu nearly right ones succeeded",
	       ops, driver[dev], counts[0], counts[1]);
	for (err = 1; err < 256; err++)
		if (ends[err])
			TH_LOG("%s: %lu", strerror(err), ends[err]);
	/* It did get beyond the checks of its arguments */
	EXPECT_LT(ops / 1000, counts[1]);
}

TEST_F_TIMEOUT(p2p_fuzz, gpu, TIMEOUT_S)
{
	attack(_metadata, self, GPU);
}

TEST_F_TIMEOUT(p2p_fuzz, nic, TIMEOUT_S)
{
	attack(_metadata, self, NIC);
}

TEST_F_TIMEOUT(p2p_fuzz, rdma, TIMEOUT_S)
{
	attack(_metadata, self, RDMA);
}

TEST_HARNESS_MAIN
