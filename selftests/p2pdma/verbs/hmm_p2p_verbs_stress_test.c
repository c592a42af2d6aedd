// SPDX-License-Identifier: GPL-2.0
/*
 * Stress test of RDMA on-demand paging over device private memory with a real
 * verbs device: everything at the same time, at random
 *
 * Some processes, each with some threads, work on a few regions of memory. A page
 * has a thread that owns it: only that changes what is in it, by the CPU, the GPU
 * or the device, and knows what that is. Meanwhile one more thread of each process
 * moves pages of all of them, and the test changes the policy, all of which must
 * not be seen in any page.
 *
 * A step of a thread depends only on the seed and on the numbers of the
 * process, the thread and the step. The scheduler decides when it runs.
 *
 *	P2P_STRESS_SEED		1 unless it is set
 *	P2P_STRESS_OPS		steps of all threads together
 *	P2P_STRESS_MINUTES	go on for so long, however many steps that are
 *
 * A word of a page tells who wrote it: process (16 bits), thread (6), step (28),
 * page of that step (5) and its place in the page (9). A page that nobody has
 * written is zero.
 */
#define _GNU_SOURCE
#include "verbs_fixture.h"

#include <stdarg.h>

#define OPS	100000UL
#define PROCS	6U
#define OWNERS	2U		/* threads of a process that have pages */
#define MOVER	OWNERS
#define ACTORS	(OWNERS + 1)
#define ROUND	10000UL		/* steps until all processes are new */

#define WORDS	(P2P_PAGE / sizeof(__u64))
#define PLACES	32U		/* of pages of one step */
#define SELDOM	24		/* one of so many */

/*
 * Regions are as far from each other as parts of an implicit region, so that a part
 * is destroyed when no page of its small region is mapped. They lie where mmap() looks
 * last: nobody is given a hole in them.
 */
#define BASE		0x10000000000UL
#define DISTANCE	(2UL << 30)
#define RUN		4U	/* pages in a row with the same owner */
#define SMALL		(RUN * OWNERS)
#define REGIONS		4U

static const size_t region_pages[REGIONS] = {
	P2P_HUGE / P2P_PAGE, SMALL, SMALL, SMALL
};

/* What a thread does; the name is in the same place in all processes */
struct at {
	__u64 step;
	const char *op;
};

/* What may fail at any one time, and must not fail each time */
enum {
	REFUSED, WINDOW, LOOK, PREFETCH, FORK, EXEC,
	/* As in advices[] */
	COLD, PAGEOUT, HUGEPAGE, NOHUGEPAGE, COLLAPSE, WILLNEED, POPULATE,
	COUNTED
};

static const char *const counted[] = {
	"transfers refused", "windows", "looks", "prefetches", "forks", "execs",
	"cold", "pageout", "hugepage", "nohugepage", "collapse", "willneed",
	"populate",
};

static const int advices[] = {
	MADV_COLD, MADV_PAGEOUT, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE,
	MADV_WILLNEED, MADV_POPULATE_READ,
};

/* What all processes share */
struct stress {
	__u64 seed;
	__u64 steps;		/* that were begun */
	__u64 round;		/* ends with so many of them */
	__u64 late;		/* page faults that ran out of time */
	bool stop;		/* something is wrong, and is reported */
	__u64 counts[COUNTED];
	struct at at[PROCS][ACTORS];
};

static struct stress *stress;

/* A process */
struct proc {
	VERBS_SELF self;
	unsigned int number;
	unsigned int slot;
	struct ibv_mr *implicit;
	int mem;		/* /proc/self/mem */
	/* What begins each page, or 0 */
	__u64 want[REGIONS][P2P_HUGE / P2P_PAGE];
};

struct actor {
	pthread_t thread;
	struct proc *proc;
	unsigned int number;
	__u64 step;
	unsigned int random;
	const char *op;
	struct verbs_link link;
	struct ibv_mr *explicit[REGIONS];
	unsigned char *data;	/* memory of its own that is pinned */
	struct ibv_mr *pinned;
	pid_t child;
};

/* Pages of one owner in a row */
struct run {
	unsigned int region;
	unsigned int first;
	unsigned int n;
	unsigned char *p;
	size_t len;
	__u64 *want;
};

static __u64 number_from(const char *name, __u64 otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static bool stopped(void)
{
	return __atomic_load_n(&stress->stop, __ATOMIC_RELAXED);
}

/* Report the first error, and end everything */
__printf(2, 3)
static void wrong(struct actor *a, const char *fmt, ...)
{
	char text[256];
	va_list args;

	if (__atomic_exchange_n(&stress->stop, true, __ATOMIC_RELAXED))
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fprintf(TH_LOG_STREAM,
		"# seed %llu, process %u, thread %u, step %llu, %s: %s\n",
		stress->seed, a->proc->number, a->number, a->step, a->op, text);
}

static void count(unsigned int what)
{
	__atomic_fetch_add(&stress->counts[what], 1, __ATOMIC_RELAXED);
}

static unsigned int dice(struct actor *a, unsigned int sides)
{
	return rand_r(&a->random) % sides;
}

static void next_step(struct actor *a)
{
	__u64 name = ((__u64)a->proc->number << 40) + ((__u64)a->number << 32);

	a->step++;
	p2p_fill(&a->random, stress->seed * 0x9e3779b9 + name + a->step, 0,
		 sizeof(a->random));
}

/* Contents */

static __u64 new_stamp(const struct actor *a, unsigned int page)
{
	return ((((__u64)a->proc->number << 6 | a->number) << 28 | a->step) *
		PLACES + page) * WORDS;
}

static void fill(void *buf, __u64 stamp)
{
	__u64 *word = buf;
	size_t i;

	for (i = 0; i < WORDS; i++)
		word[i] = stamp ? stamp + i : 0;
}

static void check(struct actor *a, const struct run *run, unsigned int page,
		  const void *buf, const char *who)
{
	__u64 want = run->want[page];
	const __u64 *word = buf;
	__u64 seen, from;
	size_t i;

	for (i = 0; i < WORDS; i++) {
		if (word[i] != (want ? want + i : 0))
			break;
	}
	if (i == WORDS)
		return;
	seen = word[i];
	from = seen / WORDS / PLACES;
	wrong(a,
	      "%s: region %u, page %u, byte %zu is %#llx and not %#llx, of process %llu, thread %llu, step %llu",
	      who, run->region, run->first + page, i * sizeof(*word), seen,
	      want ? want + i : 0, from >> 34, from >> 28 & 63,
	      from & 0xfffffff);
}

static void check_all(struct actor *a, const struct run *run, const void *buf,
		      const char *who)
{
	unsigned int i;

	for (i = 0; i < run->n; i++)
		check(a, run, i, buf + i * P2P_PAGE, who);
}

static unsigned char *region(unsigned int i)
{
	return (unsigned char *)(BASE + i * DISTANCE);
}

static struct run run_at(struct actor *a, unsigned int region_nr,
			 unsigned int first, unsigned int n)
{
	return (struct run){
		.region = region_nr,
		.first = first,
		.n = n,
		.p = region(region_nr) + first * P2P_PAGE,
		.len = n * P2P_PAGE,
		.want = a->proc->want[region_nr] + first,
	};
}

/* Pages of this thread, one most of the time, or @n if that is not 0 */
static struct run pick(struct actor *a, unsigned int n)
{
	unsigned int nr = dice(a, REGIONS);
	unsigned int runs = region_pages[nr] / SMALL;
	unsigned int first = (dice(a, runs) * OWNERS + a->number) * RUN;

	if (!n)
		n = dice(a, 3) ? 1 : 1 + dice(a, RUN);
	return run_at(a, nr, first + dice(a, RUN - n + 1), n);
}

static void map(struct actor *a, const struct run *run)
{
	if (mmap(run->p, run->len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		 MAP_ANONYMOUS | MAP_FIXED, -1, 0) != run->p)
		wrong(a, "mmap: %s", strerror(errno));
	memset(run->want, 0, run->n * sizeof(*run->want));
}

static void expect(struct actor *a, const char *what, long ret)
{
	if (ret < 0)
		wrong(a, "%s: %s", what, strerror(-ret));
}

static void expect_call(struct actor *a, const char *what, int ret)
{
	expect(a, what, ret ? -errno : 0);
}

/* What the owner of pages does with them */

static void stamp_all(struct actor *a, const struct run *run)
{
	unsigned int i;

	for (i = 0; i < run->n; i++)
		run->want[i] = new_stamp(a, i);
}

static void cpu_write(struct actor *a)
{
	struct run run = pick(a, 0);
	unsigned int i;

	stamp_all(a, &run);
	for (i = 0; i < run.n; i++)
		fill(run.p + i * P2P_PAGE, run.want[i]);
}

static void cpu_read(struct actor *a)
{
	struct run run = pick(a, 0);

	check_all(a, &run, run.p, "CPU");
}

static void data_fill(struct actor *a, const struct run *run)
{
	unsigned int i;

	for (i = 0; i < run->n; i++)
		fill(a->data + i * P2P_PAGE, run->want[i]);
}

static void gpu_write(struct actor *a)
{
	struct run run = pick(a, 0);

	stamp_all(a, &run);
	data_fill(a, &run);
	expect(a, "GPU write", p2p_gpu_write(&a->proc->self.gpu, run.p, a->data,
					     run.len));
}

static void gpu_read(struct actor *a)
{
	struct run run = pick(a, 0);

	memset(a->data, 0xff, run.len);
	expect(a, "GPU read", p2p_gpu_read(&a->proc->self.gpu, run.p, a->data,
					   run.len));
	check_all(a, &run, a->data, "GPU");
}

static struct verbs_end data_end(struct actor *a)
{
	return (struct verbs_end){ a->data, a->pinned };
}

/* By one region or the other */
static struct verbs_end run_end(struct actor *a, const struct run *run)
{
	bool implicit = a->proc->implicit && dice(a, 2);

	return (struct verbs_end){
		run->p,
		implicit ? a->proc->implicit : a->explicit[run->region]
	};
}

static void transfer(struct actor *a, enum ibv_wr_opcode op,
		     struct verbs_end mine, struct verbs_end theirs, size_t len)
{
	unsigned int late = 0;
	int status;

	status = verbs_do_moving(&a->proc->self.v, &a->link, op, mine, theirs,
				 len, &late);
	__atomic_fetch_add(&stress->late, late, __ATOMIC_RELAXED);
	if (status)
		wrong(a, "it ended with %s", verbs_str(status));
}

/* From one to the other, as the one asks for it or the other */
static void copy(struct actor *a, struct verbs_end from, struct verbs_end to,
		 size_t len)
{
	if (dice(a, 2))
		transfer(a, IBV_WR_RDMA_WRITE, from, to, len);
	else
		transfer(a, IBV_WR_RDMA_READ, to, from, len);
}

static void nic_write(struct actor *a)
{
	struct run run = pick(a, 0);

	stamp_all(a, &run);
	data_fill(a, &run);
	copy(a, data_end(a), run_end(a, &run), run.len);
}

static void nic_check(struct actor *a, const struct run *run, const char *who)
{
	memset(a->data, 0xff, run->len);
	copy(a, run_end(a, run), data_end(a), run->len);
	if (!stopped())
		check_all(a, run, a->data, who);
}

static void nic_read(struct actor *a)
{
	struct run run = pick(a, 0);

	nic_check(a, &run, "NIC");
}

static bool same_pages(const struct run *x, const struct run *y)
{
	return x->p < y->p + y->len && y->p < x->p + x->len;
}

static void nic_copy(struct actor *a)
{
	struct run from = pick(a, 0);
	struct run to = pick(a, from.n);

	if (same_pages(&from, &to))
		return;
	copy(a, run_end(a, &from), run_end(a, &to), from.len);
	memcpy(to.want, from.want, from.n * sizeof(*from.want));
	nic_check(a, dice(a, 2) ? &from : &to, "NIC after copy");
}

/* This takes longer than anything else, however many pages there are */
static void to_vram(struct actor *a)
{
	struct run run = pick(a, RUN);

	expect(a, "to VRAM", p2p_gpu_to_vram(&a->proc->self.gpu, run.p,
					     run.len));
}

static void to_host(struct actor *a)
{
	struct run run = pick(a, 0);

	expect(a, "to host", p2p_gpu_to_host(&a->proc->self.gpu, run.p,
					     run.len));
}

/* It is only advice; what comes of it is seen in other steps */
static void prefetch_run(struct actor *a, const struct run *run,
			 const struct ibv_mr *mr)
{
	static const enum ib_uverbs_advise_mr_advice advice[] = {
		IBV_ADVISE_MR_ADVICE_PREFETCH,
		IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
		IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
	};
	struct ibv_sge sge = {
		.addr = (uintptr_t)run->p,
		.length = run->len,
		.lkey = mr->lkey,
	};

	if (!ibv_advise_mr(a->proc->self.v.pd,
			   advice[dice(a, ARRAY_SIZE(advice))],
			   dice(a, 2) ? IBV_ADVISE_MR_FLAG_FLUSH : 0, &sge, 1))
		count(PREFETCH);
}

static void prefetch(struct actor *a)
{
	struct run run = pick(a, 0);

	prefetch_run(a, &run, run_end(a, &run).mr);
}

static void discard(struct actor *a)
{
	struct run run = pick(a, 0);

	expect_call(a, "MADV_DONTNEED", madvise(run.p, run.len, MADV_DONTNEED));
	memset(run.want, 0, run.n * sizeof(*run.want));
}

/* This must fail, and change nothing: that is seen in other steps */
static void refused(struct actor *a, const struct run *run,
		    enum ibv_wr_opcode op)
{
	int status = verbs_do(&a->link, op, data_end(a), run_end(a, run),
			      run->len);

	if (status <= 0)
		wrong(a, "a transfer that is not allowed: %s",
		      verbs_str(status));
	count(REFUSED);
	expect(a, "unlink", verbs_unlink(&a->link));
	expect(a, "link", verbs_link(&a->proc->self.v, &a->link));
}

static void unmap(struct actor *a)
{
	struct run run = pick(a, 0);

	expect_call(a, "munmap", munmap(run.p, run.len));
	if (!dice(a, SELDOM))
		refused(a, &run, dice(a, 2) ? IBV_WR_RDMA_READ :
					      IBV_WR_RDMA_WRITE);
	map(a, &run);
}

static void protect(struct actor *a)
{
	struct run run = pick(a, 0);

	expect_call(a, "mprotect", mprotect(run.p, run.len, PROT_READ));
	if (dice(a, 2))
		check_all(a, &run, run.p, "CPU, read-only");
	if (!dice(a, 4))
		expect(a, "to VRAM", p2p_gpu_to_vram(&a->proc->self.gpu, run.p,
						     run.len));
	if (!dice(a, SELDOM))
		refused(a, &run, IBV_WR_RDMA_WRITE);
	expect_call(a, "mprotect", mprotect(run.p, run.len, PROT_READ |
					    PROT_WRITE));
}

static void remap(struct actor *a)
{
	struct run from = pick(a, 1), to = pick(a, 1);
	bool stays = dice(a, 2);

	if (same_pages(&from, &to))
		return;
	if (mremap(from.p, from.len, to.len, MREMAP_MAYMOVE | MREMAP_FIXED |
		   (stays ? MREMAP_DONTUNMAP : 0), to.p) != to.p)
		wrong(a, "mremap: %s", strerror(errno));
	*to.want = *from.want;
	if (stays)
		*from.want = 0;
	else
		map(a, &from);
}

/* The registration ends, and a new one has another key; or it changes */
static void reregister(struct actor *a)
{
	unsigned int nr = dice(a, REGIONS);
	struct ibv_mr **mr = &a->explicit[nr];
	struct ibv_pd *pd = a->proc->self.v.pd;
	struct run run = pick(a, 1);
	int access = VERBS_ODP;
	int ret;

	if (dice(a, 2)) {
		expect(a, "ibv_dereg_mr", -ibv_dereg_mr(*mr));
		*mr = ibv_reg_mr(pd, region(nr), region_pages[nr] * P2P_PAGE,
				 access);
		if (!*mr)
			wrong(a, "ibv_reg_mr: %s", strerror(errno));
		return;
	}
	mr = &a->explicit[run.region];
	for (access &= ~IBV_ACCESS_REMOTE_WRITE; !stopped();
	     access |= IBV_ACCESS_REMOTE_WRITE) {
		ret = ibv_rereg_mr(*mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL,
				   0, access);
		if (ret && errno != EOPNOTSUPP)
			wrong(a, "ibv_rereg_mr: %d, %s", ret, strerror(errno));
		if (access == VERBS_ODP)
			break;
		memset(a->data, 0xff, run.len);
		transfer(a, IBV_WR_RDMA_READ, data_end(a),
			 (struct verbs_end){ run.p, *mr }, run.len);
		if (!stopped())
			check(a, &run, 0, a->data, "NIC, changed region");
	}
}

static void reap(struct actor *a)
{
	int status;

	if (!a->child)
		return;
	if (waitpid(a->child, &status, 0) != a->child)
		wrong(a, "waitpid: %s", strerror(errno));
	else if (status)
		wrong(a, "a child ended with status %#x", status);
	else
		count(FORK);
	a->child = 0;
}

/* The child has what was there at this moment, whatever the parent does */
static void fork_child(struct actor *a)
{
	struct run run[3];
	unsigned int i, j;

	reap(a);
	for (i = 0; i < ARRAY_SIZE(run); i++)
		run[i] = pick(a, RUN);
	a->child = fork();
	if (a->child < 0) {
		wrong(a, "fork: %s", strerror(errno));
		a->child = 0;
	}
	if (a->child || stopped())
		return;
	if (dice(a, 2))
		p2p_gpu_to_vram(&a->proc->self.gpu, run[0].p, run[0].len);
	for (j = 0; j < 2; j++) {
		for (i = 0; i < ARRAY_SIZE(run); i++)
			check_all(a, &run[i], run[i].p, "CPU of a child");
		p2p_sleep_ms(dice(a, 8));
		if (dice(a, 2))
			fill(run[0].p, *run[0].want = new_stamp(a, PLACES - 1));
	}
	_exit(stopped());
}

/* What may happen to any page at any time */

/* Pages of all owners: some, or all of a region, which takes long if it is large */
static struct run pick_any(struct actor *a)
{
	unsigned int nr = dice(a, 64) ? dice(a, REGIONS) : 0;
	unsigned int pages = region_pages[nr];
	unsigned int n = dice(a, nr ? 4 : 64) ? 1 + dice(a, SMALL) : pages;

	return run_at(a, nr, dice(a, pages - n + 1), n);
}

static void any_to_vram(struct actor *a)
{
	struct run run = pick_any(a);
	long ret = p2p_gpu_to_vram(&a->proc->self.gpu, run.p, run.len);

	/* Somebody may be about to map it again */
	if (ret != -EFAULT)
		expect(a, "to VRAM", ret);
}

static void any_to_host(struct actor *a)
{
	struct run run = pick_any(a);
	long ret = p2p_gpu_to_host(&a->proc->self.gpu, run.p, run.len);

	if (ret != -EFAULT)
		expect(a, "to host", ret);
}

/* As a debugger does, which may find nothing */
static void any_look(struct actor *a)
{
	struct run run = pick_any(a);

	if (pread(a->proc->mem, a->data, P2P_PAGE, (uintptr_t)run.p) == P2P_PAGE)
		count(LOOK);
}

static void any_advice(struct actor *a)
{
	unsigned int i = dice(a, ARRAY_SIZE(advices));
	struct run run = pick_any(a);

	if (advices[i] == MADV_COLLAPSE)
		run = run_at(a, 0, 0, region_pages[0]);
	if (!madvise(run.p, run.len, advices[i]))
		count(COLD + i);
}

/* Another program takes the place of this one, whatever its other threads do */
static void exec_program(struct actor *a)
{
	if (dice(a, SELDOM))
		return;
	count(EXEC);
	execl("/bin/true", "true", NULL);
	wrong(a, "exec: %s", strerror(errno));
}

static void any_prefetch(struct actor *a)
{
	struct run run = pick_any(a);

	if (a->proc->implicit)
		prefetch_run(a, &run, a->proc->implicit);
}

struct op {
	const char *name;
	void (*run)(struct actor *a);
	unsigned int weight;
};

static const struct op owner_ops[] = {
	{ "CPU write", cpu_write, 24 },
	{ "CPU read", cpu_read, 20 },
	{ "GPU write", gpu_write, 10 },
	{ "GPU read", gpu_read, 16 },
	{ "NIC write", nic_write, 24 },
	{ "NIC read", nic_read, 24 },
	{ "NIC copy", nic_copy, 12 },
	{ "to VRAM", to_vram, 8 },
	{ "to host", to_host, 8 },
	{ "prefetch", prefetch, 6 },
	{ "discard", discard, 6 },
	{ "unmap", unmap, 6 },
	{ "protect", protect, 6 },
	{ "remap", remap, 6 },
	{ "register", reregister, 2 },
	{ "fork", fork_child, 1 },
	{ }
};

static const struct op mover_ops[] = {
	{ "any to VRAM", any_to_vram, 6 },
	{ "any to host", any_to_host, 3 },
	{ "look at any", any_look, 3 },
	{ "advice on any", any_advice, 2 },
	{ "prefetch any", any_prefetch, 1 },
	{ "exec", exec_program, 1 },
	{ }
};

static const struct op *pick_op(struct actor *a, const struct op *ops)
{
	unsigned int i, sum = 0;

	for (i = 0; ops[i].run; i++)
		sum += ops[i].weight;
	sum = dice(a, sum);
	for (i = 0; sum >= ops[i].weight; i++)
		sum -= ops[i].weight;
	return &ops[i];
}

static bool round_goes_on(void)
{
	return !stopped() && __atomic_fetch_add(&stress->steps, 1,
						__ATOMIC_RELAXED) <
			     __atomic_load_n(&stress->round, __ATOMIC_RELAXED);
}

static void *act(void *arg)
{
	struct actor *a = arg;
	const struct op *op;

	while (round_goes_on()) {
		next_step(a);
		op = pick_op(a, a->number == MOVER ? mover_ops : owner_ops);
		a->op = op->name;
		stress->at[a->proc->slot][a->number] =
			(struct at){ a->step, a->op };
		op->run(a);
		/* Page faults need some time in which nothing moves */
		if (a->number == MOVER)
			p2p_sleep_ms(dice(a, 32));
	}
	a->op = "end";
	reap(a);
	return NULL;
}

static void actor_init(struct __test_metadata *_metadata, struct actor *a,
		       struct proc *proc, unsigned int number)
{
	unsigned int i;

	a->proc = proc;
	a->number = number;
	a->op = "begin";
	ASSERT_EQ(0, verbs_link(&proc->self.v, &a->link));
	a->data = p2p_alloc(RUN * P2P_PAGE);
	ASSERT_NE(NULL, a->data);
	a->pinned = ibv_reg_mr(proc->self.v.pd, a->data, RUN * P2P_PAGE,
			       VERBS_REMOTE);
	ASSERT_NE(NULL, a->pinned);
	for (i = 0; i < REGIONS && number != MOVER; i++) {
		a->explicit[i] = ibv_reg_mr(proc->self.v.pd, region(i),
					    region_pages[i] * P2P_PAGE,
					    VERBS_ODP);
		ASSERT_NE(NULL, a->explicit[i]);
	}
}

/* A process; what it has of verbs goes with it */
static void process(struct __test_metadata *_metadata, VERBS_SELF *self,
		    unsigned int number)
{
	struct proc *proc = calloc(1, sizeof(*proc));
	struct actor *a = calloc(ACTORS, sizeof(*a));
	unsigned int i, page;
	struct run run;

	ASSERT_NE(NULL, proc);
	ASSERT_NE(NULL, a);
	proc->number = number;
	proc->slot = number % PROCS;
	verbs_own(_metadata, self, &proc->self);
	proc->mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, proc->mem);
	for (i = 0; i < REGIONS; i++) {
		run = (struct run){
			.p = region(i),
			.n = region_pages[i],
			.len = region_pages[i] * P2P_PAGE,
			.want = proc->want[i],
		};
		a->proc = proc;
		map(a, &run);
	}
	if (proc->self.v.implicit) {
		proc->implicit = ibv_reg_mr(proc->self.v.pd, NULL, SIZE_MAX,
					    VERBS_ODP);
		ASSERT_NE(NULL, proc->implicit);
	}
	for (i = 0; i < ACTORS; i++)
		actor_init(_metadata, &a[i], proc, i);
	for (i = 0; i < ACTORS; i++)
		ASSERT_EQ(0, pthread_create(&a[i].thread, NULL, act, &a[i]));
	for (i = 0; i < ACTORS; i++)
		ASSERT_EQ(0, pthread_join(a[i].thread, NULL));
	for (i = 0; i < REGIONS; i++) {
		for (page = 0; page < region_pages[i] && !stopped(); page++) {
			run = run_at(a, i, page, 1);
			check(a, &run, 0, run.p, "CPU in the end");
		}
	}
	_exit(stopped());
}

FIXTURE(verbs_stress)
{
	VERBS_SELF verbs;
};

FIXTURE_SETUP(verbs_stress)
{
	verbs_setup(_metadata, &self->verbs, NULL);
}

FIXTURE_TEARDOWN_PARENT(verbs_stress)
{
	verbs_teardown(_metadata, &self->verbs, NULL);
}

/* Change policy and window, with no page in VRAM or with many */
static void disturb(struct __test_metadata *_metadata, VERBS_SELF *self,
		    struct actor *a)
{
	static const char * const policy[] = {
		"auto", "auto", "auto", "auto", "switch", "never",
	};
	__u64 size = self->info.vram_size;
	int ret;

	next_step(a);
	if (self->has_p2p)
		ASSERT_EQ(0, p2p_policy_set(policy[dice(a, ARRAY_SIZE(policy))]));
	if (!dice(a, 4))
		size = dice(a, 3) * P2P_HUGE;
	ret = p2p_gpu_window(&self->gpu, 0, size);
	ASSERT_TRUE(!ret || ret == -EBUSY);
	if (!ret)
		count(WINDOW);
	p2p_sleep_ms(5 + dice(a, 200));
}

/* With an error that somebody has reported, or by a signal */
static void ended(struct __test_metadata *_metadata, unsigned int number,
		  int status)
{
	unsigned int i;

	__atomic_store_n(&stress->stop, true, __ATOMIC_RELAXED);
	TH_LOG("seed %llu, process %u: status %#x", stress->seed, number,
	       status);
	for (i = 0; i < ACTORS; i++)
		TH_LOG("thread %u, step %llu: %s", i,
		       stress->at[number % PROCS][i].step,
		       stress->at[number % PROCS][i].op);
}

/* All processes are new: nobody is in VRAM, and what peers reach of it can change */
static unsigned int stress_round(struct __test_metadata *_metadata,
				 VERBS_SELF *self, struct actor *a,
				 unsigned int number)
{
	unsigned int slot, left = PROCS;
	pid_t pid[PROCS];
	int status;

	ASSERT_EQ(0, p2p_gpu_wait_used(&self->gpu, 0));
	disturb(_metadata, self, a);
	stress->round = __atomic_load_n(&stress->steps, __ATOMIC_RELAXED) +
			ROUND;
	for (slot = 0; slot < PROCS; slot++) {
		pid[slot] = p2p_fork_child(_metadata);
		if (!pid[slot])
			process(_metadata, self, number + slot);
	}
	while (left) {
		disturb(_metadata, self, a);
		for (slot = 0; slot < PROCS; slot++) {
			if (!pid[slot] || !waitpid(pid[slot], &status, WNOHANG))
				continue;
			pid[slot] = 0;
			left--;
			EXPECT_EQ(0, status)
				ended(_metadata, number + slot, status);
		}
	}
	return number + PROCS;
}

/* Pages, since boot */
static long swapped_out(void)
{
	return p2p_number_in("/proc/vmstat", "pswpout ");
}

TEST_F_TIMEOUT(verbs_stress, all, TIMEOUT_S)
{
	bool swap = p2p_number_in("/proc/meminfo", "SwapTotal:") > 0;
	long swapped = swapped_out();
	__u64 minutes = number_from("P2P_STRESS_MINUTES", 0);
	__u64 ops = number_from("P2P_STRESS_OPS", OPS);
	VERBS_SELF *verbs = &self->verbs;
	struct proc proc = { .slot = 0 };
	struct actor actor = { .proc = &proc, .number = ACTORS };
	__u64 start = p2p_now_ms();
	unsigned int number = PROCS;
	struct verbs_mark mark;
	__u64 met = 0, used, moved;
	int i;

	stress = mmap(NULL, sizeof(*stress), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)stress);
	stress->seed = number_from("P2P_STRESS_SEED", 1);
	ksft_print_msg("stress: seed %llu\n", stress->seed);
	verbs_mark(_metadata, verbs, &mark);
	do
		number = stress_round(_metadata, verbs, &actor, number);
	while (!stopped() && (minutes ? p2p_now_ms() - start < minutes * 60000 :
					stress->steps < ops));
	ASSERT_EQ(0, p2p_gpu_wait_used(&verbs->gpu, 0));
	moved = p2p_moves(_metadata, &verbs->gpu, &mark.info);
	if (verbs->has_p2p)
		ASSERT_EQ(0, p2p_stats_since(&mark.stats));
	for (i = P2PTEST_REASON_NONE + 1; i < P2PTEST_REASON_MAX; i++)
		met += mark.stats.pages[i];
	used = mark.stats.pages[P2PTEST_REASON_BUS_ADDR] +
	       mark.stats.pages[P2PTEST_REASON_HOST_BRIDGE];
	printf("# stress: %ld pages swapped out", swapped_out() - swapped);
	for (i = 0; i < COUNTED; i++)
		printf(", %llu %s", stress->counts[i], counted[i]);
	printf("\n");
	ksft_print_msg("stress: seed %llu, %llu steps of %u processes in %llu s",
		       stress->seed, stress->steps, number - PROCS,
		       (p2p_now_ms() - start) / 1000);
	printf(", %llu pages met in VRAM, %llu of them used there, %llu moved",
	       met, used, moved);
	printf(", %llu page faults too late\n", stress->late);
	ASSERT_FALSE(stopped());
	EXPECT_LT(0U, moved);
	/* A few on a busy machine */
	EXPECT_GT(stress->steps / 100, stress->late);
	for (i = 0; i < COUNTED; i++) {
		/* Without swap there is nothing to read ahead */
		if (!swap && i == WILLNEED)
			continue;
		EXPECT_LT(0U, stress->counts[i]) {
			TH_LOG("%s: never", counted[i]);
		}
	}
	if (swap)
		EXPECT_LT(0, swapped_out() - swapped);
	if (verbs->has_p2p)
		EXPECT_LT(0U, met);
}

TEST_HARNESS_MAIN
