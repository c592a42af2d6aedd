// SPDX-License-Identifier: GPL-2.0
/*
 * Test of a real verbs device: calls of its uverbs file at random
 *
 * Meanwhile a victim has memory of its own, some of it in VRAM, which it reads by the
 * device all the time. Attackers make the calls, some hundreds each: any bits, and
 * calls that are nearly right, of write() and of ioctl(). Each call must end, well or
 * with an errno. The victim's memory must not change, and the device must work for
 * the victim, and for who opens it afterwards.
 *
 *	P2P_STRESS_SEED		1 unless it is set
 *	P2P_STRESS_OPS		calls of each test
 *
 * These attackers only create objects. The attacker of foreign_keys also has the
 * device transfer, with the victim's keys and those above them.
 */
#include "verbs_fixture.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>

#define OPS		20000UL
#define CHUNK		256U	/* calls of an attacker */
#define CHUNK_S		1200U	/* in which it has to make them */

#define WORDS		64U	/* of 8 bytes: the longest request */
#define ATTRS		12U
#define RESPONSE	256U	/* what there is room for, with what a driver adds */

/* The error of the kernel that has no name outside of it, but is seen there */
#define NOT_SUPPORTED	524

enum { PD, CQ, QP, SRQ, MR, MW, AH, KINDS };

/* What an attacker has, each between two pages that nobody may touch */
enum { PLAIN, READ_ONLY, NONE, SHARED, OUT, ARENAS };

#define ARENA_LEN	(PAGES * P2P_PAGE)

/* What all of them share */
struct shared {
	unsigned char *secret;	/* address in the victim */
	__u32 lkey;		/* of the victim */
	__u32 rkey;
	unsigned int random;
	unsigned long calls;
	unsigned long good[2];
	unsigned long ends[NOT_SUPPORTED + 1];
	bool ready;
	bool end;
};

FIXTURE(verbs_fuzz)
{
	VERBS_SELF verbs;
	struct shared *shared;
	unsigned char *arena[ARENAS];
	pid_t victim;
};

#define SELF FIXTURE_DATA(verbs_fuzz)

#define load(x)		__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define store(x, v)	__atomic_store_n(&(x), v, __ATOMIC_RELEASE)

static void victim(struct __test_metadata *_metadata, SELF *self)
{
	struct shared *shared = self->shared;
	struct verbs_buf secret, data;
	VERBS_SELF own;

	verbs_own(_metadata, &self->verbs, &own);
	verbs_buf_init(_metadata, &own, &secret, PAGES, OTHER, VERBS_ODP);
	verbs_buf_init(_metadata, &own, &data, PAGES, BEFORE, VERBS_REMOTE);
	shared->secret = secret.p;
	shared->lkey = secret.mr->lkey;
	shared->rkey = secret.mr->rkey;
	store(shared->ready, true);
	while (!load(shared->end) && !_metadata->exit_code) {
		ASSERT_LE(0, p2p_gpu_to_vram(&own.gpu, secret.p, secret.len / 2));
		verbs_copy(_metadata, &own, IBV_WR_RDMA_READ, &secret, 0, &data, 0,
			   secret.len);
		verbs_buf_check(_metadata, &own, &data);
		verbs_buf_check(_metadata, &own, &secret);
		p2p_sleep_ms(100);
	}
	verbs_buf_fill(&data, AFTER);
	verbs_copy(_metadata, &own, IBV_WR_RDMA_WRITE, &data, 0, &secret, 0,
		   secret.len);
	verbs_buf_check(_metadata, &own, &secret);
	_exit(0);
}

static void *guarded(struct __test_metadata *_metadata, int prot, int flags)
{
	unsigned char *room = mmap(NULL, ARENA_LEN + 2 * P2P_PAGE, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, (void *)room);
	ASSERT_EQ((void *)(room + P2P_PAGE),
		  mmap(room + P2P_PAGE, ARENA_LEN, prot,
		       flags | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	return room + P2P_PAGE;
}

FIXTURE_SETUP(verbs_fuzz)
{
	static const int prot[] = {
		[PLAIN]		= PROT_READ | PROT_WRITE,
		[READ_ONLY]	= PROT_READ,
		[NONE]		= PROT_NONE,
		[SHARED]	= PROT_READ | PROT_WRITE,
		[OUT]		= PROT_READ | PROT_WRITE,
	};
	const char *seed = getenv("P2P_STRESS_SEED");
	pid_t pid;
	int i;

	verbs_setup(_metadata, &self->verbs, NULL);
	if (self->verbs.gpu.fd < 0)
		return;
	self->shared = mmap(NULL, sizeof(*self->shared), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->shared);
	self->shared->random = seed && *seed ? strtoul(seed, NULL, 0) : 1;
	for (i = 0; i < ARENAS; i++)
		self->arena[i] = guarded(_metadata, prot[i],
					 i == SHARED ? MAP_SHARED : MAP_PRIVATE);
	/* The child shares the fixture's data */
	pid = p2p_fork_child(_metadata);
	if (!pid)
		victim(_metadata, self);
	self->victim = pid;
	while (!load(self->shared->ready) && !_metadata->exit_code)
		p2p_sleep_ms(1);
}

FIXTURE_TEARDOWN_PARENT(verbs_fuzz)
{
	verbs_teardown(_metadata, &self->verbs, NULL);
}

/* The attacker */

struct attacker {
	SELF *self;
	struct shared *shared;
	unsigned char *secret;
	struct verbs v;
	int fd;
	__u32 driver;
	__u32 handle[KINDS];
	/* The call */
	union {
		struct ib_uverbs_cmd_hdr hdr;
		__u64 word[WORDS];
	};
	size_t core;		/* bytes of it that the core knows */
	size_t len;
	int makes;		/* what has a new handle if it succeeds, or -1 */
	union {
		struct ib_uverbs_ioctl_hdr ioctl;
		unsigned char room[sizeof(struct ib_uverbs_ioctl_hdr) +
				   ATTRS * sizeof(struct ib_uverbs_attr)];
	};
};

static unsigned int dice(struct attacker *a, unsigned int sides)
{
	return rand_r(&a->shared->random) % sides;
}

/*
 * A region on demand has a list of its pages. A length that makes the list too
 * long for the machine's memory is no error of the caller.
 */
static __u64 tame(__u64 value)
{
	return value >> 27 && !(value >> 42) ? value & ((1U << 27) - 1) : value;
}

static __u64 bits(struct attacker *a)
{
	__u64 value = (__u64)dice(a, 1U << 31) << 42 ^
		      (__u64)dice(a, 1U << 31) << 21 ^ dice(a, 1U << 31);

	return tame(value >> dice(a, 64));
}

static __u64 address(struct attacker *a)
{
	static const __u64 odd[] = {
		0, 1, 0x7ffffffff000ULL, 0x800000000000ULL, 0xffff888000000000ULL,
		0xffffffff81000000ULL, ~0ULL, ~0ULL << 12,
	};

	switch (dice(a, 8)) {
	case 0:
		return odd[dice(a, ARRAY_SIZE(odd))];
	case 1:
		return (uintptr_t)a->secret;
	default:
		return (uintptr_t)a->self->arena[dice(a, ARENAS)] +
		       (dice(a, 4) ? dice(a, PAGES) * P2P_PAGE : dice(a, ARENA_LEN));
	}
}

/* Memory that is there: for objects that shall be made */
static __u64 plain(struct attacker *a)
{
	return dice(a, 8) ? (uintptr_t)a->self->arena[PLAIN] +
			    dice(a, PAGES / 2) * P2P_PAGE : address(a);
}

static __u64 out(struct attacker *a)
{
	return dice(a, 8) ? (uintptr_t)a->self->arena[OUT] : address(a);
}

static __u64 length(struct attacker *a)
{
	static const __u64 odd[] = {
		0, 1, P2P_PAGE - 1, P2P_PAGE + 1, 1ULL << 26, 1ULL << 63, ~0ULL,
		~0ULL << 12,
	};

	if (!dice(a, 8))
		return odd[dice(a, ARRAY_SIZE(odd))];
	return dice(a, 16) ? dice(a, PAGES) * P2P_PAGE : bits(a);
}

static __u32 handle(struct attacker *a, int kind)
{
	switch (dice(a, 8)) {
	case 0:
		return dice(a, 32);
	case 1:
		return a->handle[dice(a, KINDS)];
	default:
		return a->handle[kind];
	}
}

static __u64 any(struct attacker *a)
{
	switch (dice(a, 4)) {
	case 0:
		return address(a);
	case 1:
		return handle(a, dice(a, KINDS));
	case 2:
		return (__u64)handle(a, dice(a, KINDS)) << 32 | dice(a, 64);
	default:
		return bits(a);
	}
}

/*
 * A request with so many bytes of the core and of the driver. Responses have room for
 * each of them.
 */
static void *request(struct attacker *a, __u32 command, size_t core, size_t driver)
{
	a->core = core;
	a->len = sizeof(a->hdr) + core + driver;
	a->hdr.command = command;
	a->hdr.in_words = a->len / 4;
	a->hdr.out_words = RESPONSE / 4;
	a->word[1] = out(a);
	return &a->word[1];
}

static void context_request(struct attacker *a)
{
	struct mlx5_ib_alloc_ucontext_req_v2 *more;
	struct ib_uverbs_get_context *cmd;

	cmd = request(a, IB_USER_VERBS_CMD_GET_CONTEXT, sizeof(*cmd), sizeof(*more));
	more = (void *)(cmd + 1);
	more->total_num_bfregs = dice(a, 4) ? 16 : bits(a);
	more->num_low_latency_bfregs = dice(a, 4) ? 4 : bits(a);
	more->flags = dice(a, 4);
	more->max_cqe_version = dice(a, 2);
}

static void queue_request(struct attacker *a)
{
	struct mlx5_ib_create_cq *cq_more;
	struct mlx5_ib_create_qp *qp_more;
	struct ib_uverbs_create_cq *cq;
	struct ib_uverbs_create_qp *qp;

	if (dice(a, 2)) {
		cq = request(a, IB_USER_VERBS_CMD_CREATE_CQ, sizeof(*cq), sizeof(*cq_more));
		cq_more = (void *)(cq + 1);
		cq->cqe = dice(a, 8) ? dice(a, 256) : bits(a);
		cq->comp_vector = dice(a, 8) ? 0 : bits(a);
		cq->comp_channel = dice(a, 8) ? -1 : (int)dice(a, 32);
		cq_more->buf_addr = plain(a);
		cq_more->db_addr = plain(a);
		cq_more->cqe_size = dice(a, 8) ? 64U << dice(a, 2) : bits(a);
		a->makes = CQ;
		return;
	}
	qp = request(a, IB_USER_VERBS_CMD_CREATE_QP, sizeof(*qp), sizeof(*qp_more));
	qp_more = (void *)(qp + 1);
	qp->pd_handle = handle(a, PD);
	qp->send_cq_handle = handle(a, CQ);
	qp->recv_cq_handle = handle(a, CQ);
	qp->srq_handle = handle(a, SRQ);
	qp->max_send_wr = dice(a, 8) ? 1 : bits(a);
	qp->max_recv_wr = dice(a, 8) ? 1 : bits(a);
	qp->max_send_sge = 1;
	qp->max_recv_sge = 1;
	qp->qp_type = dice(a, 4) ? IBV_QPT_RC : dice(a, 16);
	qp->is_srq = !dice(a, 4);
	qp_more->buf_addr = plain(a);
	qp_more->db_addr = plain(a);
	qp_more->sq_wqe_count = dice(a, 8) ? 4 : bits(a);
	qp_more->rq_wqe_count = dice(a, 8) ? 4 : bits(a);
	qp_more->rq_wqe_shift = dice(a, 8) ? 6 : bits(a);
	a->makes = QP;
}

static void region_request(struct attacker *a)
{
	struct ib_uverbs_dealloc_mw *dealloc;
	struct ib_uverbs_rereg_mr *rereg;
	struct ib_uverbs_dereg_mr *dereg;
	struct ib_uverbs_alloc_mw *mw;
	struct ib_uverbs_reg_mr *reg;

	switch (dice(a, 8)) {
	case 0:
		dereg = request(a, IB_USER_VERBS_CMD_DEREG_MR, sizeof(*dereg), 0);
		dereg->mr_handle = handle(a, MR);
		break;
	case 1:
	case 2:
		rereg = request(a, IB_USER_VERBS_CMD_REREG_MR, sizeof(*rereg), 0);
		rereg->mr_handle = handle(a, MR);
		rereg->flags = dice(a, 16);
		rereg->start = address(a);
		rereg->length = length(a);
		rereg->hca_va = dice(a, 8) ? rereg->start : bits(a);
		rereg->pd_handle = handle(a, PD);
		rereg->access_flags = dice(a, 8) ? dice(a, 128) : bits(a);
		break;
	case 3:
		mw = request(a, IB_USER_VERBS_CMD_ALLOC_MW, sizeof(*mw), 0);
		mw->pd_handle = handle(a, PD);
		mw->mw_type = dice(a, 4);
		a->makes = MW;
		break;
	case 4:
		dealloc = request(a, IB_USER_VERBS_CMD_DEALLOC_MW, sizeof(*dealloc), 0);
		dealloc->mw_handle = handle(a, MW);
		break;
	default:
		reg = request(a, IB_USER_VERBS_CMD_REG_MR, sizeof(*reg), 0);
		reg->start = address(a);
		reg->length = length(a);
		reg->hca_va = dice(a, 8) ? reg->start : bits(a);
		reg->pd_handle = handle(a, PD);
		reg->access_flags = dice(a, 8) ? dice(a, 128) : bits(a);
		a->makes = MR;
	}
}

static void other_request(struct attacker *a)
{
	struct ib_uverbs_create_comp_channel *channel;
	struct ib_uverbs_query_device *device;
	struct ib_uverbs_dealloc_pd *dealloc;
	struct ib_uverbs_destroy_cq *end_cq;
	struct ib_uverbs_destroy_qp *end_qp;
	struct ib_uverbs_modify_qp *modify;
	struct ib_uverbs_query_port *port;
	struct ib_uverbs_query_qp *query;
	struct ib_uverbs_create_ah *ah;
	struct ib_uverbs_alloc_pd *pd;

	switch (dice(a, 12)) {
	case 0:
		channel = request(a, IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, sizeof(*channel), 0);
		break;
	case 1:
		device = request(a, IB_USER_VERBS_CMD_QUERY_DEVICE, sizeof(*device), 0);
		break;
	case 2:
		port = request(a, IB_USER_VERBS_CMD_QUERY_PORT, sizeof(*port), 0);
		port->port_num = dice(a, 4);
		break;
	case 3:
		dealloc = request(a, IB_USER_VERBS_CMD_DEALLOC_PD, sizeof(*dealloc), 0);
		dealloc->pd_handle = handle(a, PD);
		break;
	case 4:
		end_cq = request(a, IB_USER_VERBS_CMD_DESTROY_CQ, sizeof(*end_cq), 0);
		end_cq->cq_handle = handle(a, CQ);
		break;
	case 5:
		end_qp = request(a, IB_USER_VERBS_CMD_DESTROY_QP, sizeof(*end_qp), 0);
		end_qp->qp_handle = handle(a, QP);
		break;
	case 6:
	case 7:
		modify = request(a, IB_USER_VERBS_CMD_MODIFY_QP, sizeof(*modify), 0);
		modify->qp_handle = handle(a, QP);
		/* From reset to init, or anywhere */
		modify->attr_mask = dice(a, 4) ? IBV_QP_STATE | IBV_QP_PKEY_INDEX |
						 IBV_QP_PORT | IBV_QP_ACCESS_FLAGS :
						 bits(a);
		modify->qp_state = dice(a, 4) ? IBV_QPS_INIT : dice(a, 8);
		modify->port_num = dice(a, 8) ? 1 : bits(a);
		modify->qp_access_flags = dice(a, 16);
		break;
	case 8:
		query = request(a, IB_USER_VERBS_CMD_QUERY_QP, sizeof(*query), 0);
		query->qp_handle = handle(a, QP);
		query->attr_mask = bits(a);
		break;
	case 9:
		ah = request(a, IB_USER_VERBS_CMD_CREATE_AH, sizeof(*ah), 0);
		ah->pd_handle = handle(a, PD);
		ah->attr.dlid = dice(a, 4);
		ah->attr.port_num = dice(a, 3);
		a->makes = AH;
		break;
	default:
		pd = request(a, IB_USER_VERBS_CMD_ALLOC_PD, sizeof(*pd), 0);
		a->makes = PD;
	}
}

static void nearly_right(struct attacker *a)
{
	/* Who has none needs one */
	if (!a->v.ctx && !dice(a, 2)) {
		context_request(a);
		return;
	}
	switch (dice(a, 4)) {
	case 0:
		queue_request(a);
		break;
	case 1:
		other_request(a);
		break;
	default:
		region_request(a);
	}
}

static void any_bits(struct attacker *a)
{
	struct ib_uverbs_ex_cmd_hdr *more = (void *)(&a->hdr + 1);
	size_t words = 1 + dice(a, WORDS - 1), i;

	for (i = 0; i < words; i++)
		a->word[i] = any(a);
	a->len = words * 8;
	a->core = a->len - sizeof(a->hdr);
	a->hdr.command = dice(a, 8) ? dice(a, 64) : bits(a);
	a->hdr.in_words = a->len / 4;
	a->hdr.out_words = dice(a, 8) ? RESPONSE / 4 : bits(a);
	a->word[1] = out(a);
	if (words < 4 || dice(a, 2))
		return;
	/* The other kind of header counts by 8 bytes, and without itself */
	a->hdr.command |= IB_USER_VERBS_CMD_FLAG_EXTENDED;
	a->hdr.out_words = RESPONSE / 8;
	more->provider_in_words = dice(a, words - 3);
	more->provider_out_words = 0;
	a->hdr.in_words = words - 3 - more->provider_in_words;
	more->cmd_hdr_reserved = dice(a, 16) ? 0 : bits(a);
}

/* One word is not as it was */
static void mutate(struct attacker *a)
{
	size_t i = dice(a, (a->len + 7) / 8);

	a->word[i] = dice(a, 2) ? tame(a->word[i] ^ 1ULL << dice(a, 64)) : any(a);
	/* Requests with a wrong length do not get far */
	if (!i && dice(a, 4))
		a->hdr.in_words = a->len / 4;
}

static int write_call(struct attacker *a, bool near)
{
	const void *from = a->word;
	size_t len = a->len;
	ssize_t n;

	if (near && !dice(a, 4))
		mutate(a);
	if (!dice(a, 32))
		from = (void *)(uintptr_t)address(a);
	if (!dice(a, 32))
		len = dice(a, sizeof(a->word) + 1);
	n = write(a->fd, from, len);
	if (n < 0)
		return errno;
	/* Nothing is done by halves */
	return n == (ssize_t)len ? 0 : -1;
}

static struct ib_uverbs_attr *attr(struct attacker *a, __u16 id, __u16 len, __u64 data)
{
	struct ib_uverbs_attr *attr = &a->ioctl.attrs[a->ioctl.num_attrs++];

	*attr = (struct ib_uverbs_attr){
		.attr_id = id,
		.len = len,
		.flags = UVERBS_ATTR_F_MANDATORY,
		.data = data,
	};
	return attr;
}

/* The request of a write(), as an ioctl() */
static void invoke_write(struct attacker *a)
{
	unsigned char *core = (unsigned char *)&a->word[1];
	size_t more = a->len - sizeof(a->hdr) - a->core;

	a->ioctl.object_id = UVERBS_OBJECT_DEVICE;
	a->ioctl.method_id = UVERBS_METHOD_INVOKE_WRITE;
	attr(a, UVERBS_ATTR_WRITE_CMD, 8, a->hdr.command);
	attr(a, UVERBS_ATTR_CORE_IN, a->core, (uintptr_t)core);
	attr(a, UVERBS_ATTR_CORE_OUT, RESPONSE, a->word[1]);
	if (more)
		attr(a, UVERBS_ATTR_UHW_IN, more, (uintptr_t)core + a->core);
	if (more || a->makes >= 0)
		attr(a, UVERBS_ATTR_UHW_OUT, RESPONSE, out(a));
	/* Data this short is in the attribute itself */
	if (a->core <= 8)
		a->ioctl.attrs[1].data = a->word[1];
	if (more && more <= 8)
		a->ioctl.attrs[3].data = *(__u64 *)(core + a->core);
}

static void any_attrs(struct attacker *a)
{
	static const __u16 lens[] = { 0, 1, 2, 4, 8, 16, 64, 256 };
	unsigned int i, n = dice(a, ATTRS);
	struct ib_uverbs_attr *one;

	a->makes = -1;
	a->ioctl.object_id = dice(a, UVERBS_OBJECT_COMP_CNTR + 2);
	if (!dice(a, 4))
		a->ioctl.object_id |= UVERBS_ID_DRIVER_NS;
	a->ioctl.method_id = dice(a, 10);
	if (!dice(a, 8))
		a->ioctl.method_id |= UVERBS_ID_DRIVER_NS;
	for (i = 0; i < n; i++) {
		one = attr(a, dice(a, 8) ? i : dice(a, 32),
			   dice(a, 8) ? lens[dice(a, ARRAY_SIZE(lens))] : bits(a),
			   dice(a, 2) ? any(a) : out(a));
		/* Objects, files and constants */
		if (!dice(a, 3))
			one->data = handle(a, dice(a, KINDS));
		if (dice(a, 4))
			one->flags = dice(a, 8) ? 0 : bits(a);
		if (!dice(a, 8))
			one->attr_id |= UVERBS_ID_DRIVER_NS;
		if (!dice(a, 16))
			one->attr_data.reserved = bits(a);
	}
}

static int ioctl_call(struct attacker *a, bool near)
{
	unsigned long cmd = RDMA_VERBS_IOCTL;
	void *arg = &a->ioctl;
	struct ib_uverbs_attr *one;

	memset(a->room, 0, sizeof(a->room));
	if (near)
		invoke_write(a);
	else
		any_attrs(a);
	a->ioctl.length = sizeof(a->ioctl) +
			  a->ioctl.num_attrs * sizeof(a->ioctl.attrs[0]);
	a->ioctl.driver_id = dice(a, 32) ? a->driver : bits(a);
	a->ioctl.reserved1 = dice(a, 64) ? 0 : bits(a);
	a->ioctl.reserved2 = dice(a, 64) ? 0 : bits(a);
	if (near && !dice(a, 4)) {
		one = &a->ioctl.attrs[dice(a, a->ioctl.num_attrs)];
		switch (dice(a, 4)) {
		case 0:
			one->attr_id ^= 1U << dice(a, 16);
			break;
		case 1:
			one->len = bits(a);
			break;
		case 2:
			one->data = any(a);
			break;
		default:
			mutate(a);
		}
	}
	if (!dice(a, 32))
		a->ioctl.num_attrs = bits(a);
	if (!dice(a, 32))
		a->ioctl.length = bits(a);
	if (!dice(a, 32))
		arg = (void *)(uintptr_t)address(a);
	if (!dice(a, 64))
		cmd ^= 1UL << dice(a, 32);
	return ioctl(a->fd, cmd, arg) < 0 ? errno : 0;
}

/* Only of its own driver's number the core says that there is no such object */
static __u32 driver_id(struct attacker *a)
{
	struct ib_uverbs_ioctl_hdr hdr = {
		.length = sizeof(hdr),
		.object_id = UVERBS_ID_DRIVER_NS - 1,
	};

	for (hdr.driver_id = 0; hdr.driver_id < 64; hdr.driver_id++)
		if (ioctl(a->fd, RDMA_VERBS_IOCTL, &hdr) < 0 &&
		    errno == EPROTONOSUPPORT)
			break;
	return hdr.driver_id;
}

/* Objects that calls can be about, or, for some attackers, a file and nothing else */
static void attacker_open(struct __test_metadata *_metadata, SELF *self,
			  struct attacker *a)
{
	const char *name = ibv_get_device_name(self->verbs.v.ctx->device);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct verbs_link link;
	unsigned char vec;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	char path[128];

	memset(a, 0, sizeof(*a));
	a->self = self;
	a->shared = self->shared;
	/* Where the victim has its memory, nobody here may have any */
	if (mincore(self->shared->secret, P2P_PAGE, &vec))
		a->secret = self->shared->secret;
	if (!dice(a, 4)) {
		snprintf(path, sizeof(path), "/dev/infiniband/%s",
			 self->verbs.v.ctx->device->dev_name);
		a->fd = open(path, O_RDWR | O_CLOEXEC);
		ASSERT_LE(0, a->fd)
			TH_LOG("%s: %s", path, strerror(errno));
		a->driver = driver_id(a);
		return;
	}
	setenv("P2P_VERBS_DEVICE", name, 1);
	ASSERT_EQ(NULL, verbs_open(&a->v));
	ASSERT_EQ(0, verbs_link(&a->v, &link));
	srq = ibv_create_srq(a->v.pd, &init);
	mr = ibv_reg_mr(a->v.pd, self->arena[PLAIN], ARENA_LEN, VERBS_ODP);
	ASSERT_NE(NULL, mr);
	a->fd = a->v.ctx->cmd_fd;
	a->handle[PD] = a->v.pd->handle;
	a->handle[CQ] = link.cq[ASKS]->handle;
	a->handle[QP] = link.qp[ASKS]->handle;
	a->handle[SRQ] = srq ? srq->handle : 0;
	a->handle[MR] = mr->handle;
	a->driver = driver_id(a);
}

static void attacker(struct __test_metadata *_metadata, SELF *self,
		     int (*call)(struct attacker *a, bool near))
{
	struct shared *shared = self->shared;
	struct attacker a;
	unsigned int i;
	bool near;
	int err;

	alarm(CHUNK_S);
	attacker_open(_metadata, self, &a);
	for (i = 0; i < CHUNK; i++) {
		memset(a.word, 0, sizeof(a.word));
		a.makes = -1;
		near = dice(&a, 2);
		if (near)
			nearly_right(&a);
		else
			any_bits(&a);
		err = call(&a, near);
		shared->calls++;
		ASSERT_TRUE((err >= 0 && err <= EHWPOISON) || err == NOT_SUPPORTED)
			TH_LOG("call %lu: %d", shared->calls, err);
		shared->ends[err]++;
		shared->good[near] += !err;
		if (!err && a.makes >= 0)
			memcpy(&a.handle[a.makes], self->arena[OUT],
			       sizeof(a.handle[0]));
	}
	/* Whatever it has by now goes with it */
	_exit(0);
}

static void attack(struct __test_metadata *_metadata, SELF *self,
		   int (*call)(struct attacker *a, bool near))
{
	const char *text = getenv("P2P_STRESS_OPS");
	unsigned long ops = text && *text ? strtoul(text, NULL, 0) : OPS;
	struct shared *shared = self->shared;
	unsigned long *ends = shared->ends;
	pid_t pid;
	int err;

	while (shared->calls < ops && !_metadata->exit_code) {
		pid = p2p_fork_child(_metadata);
		if (!pid)
			attacker(_metadata, self, call);
		p2p_wait_child(_metadata, pid);
	}
	store(shared->end, true);
	p2p_wait_child(_metadata, self->victim);
	verbs_works(_metadata, &self->verbs, 0);
	TH_LOG("%lu calls; %lu of any bits and %lu nearly right ones succeeded",
	       shared->calls, shared->good[0], shared->good[1]);
	for (err = 1; err <= NOT_SUPPORTED; err++)
		if (ends[err])
			TH_LOG("%s: %lu", strerror(err), ends[err]);
	/* They did get beyond the checks of their arguments */
	EXPECT_LT(ops / 100, shared->good[1]);
}

/* The index of a key is in the upper bits, a variant of it in the lower 8 */
#define KEYS		64U

/* A transfer with a key of somebody else fails, and nothing has come by it */
static void foreign_key(struct __test_metadata *_metadata, SELF *self,
			struct attacker *a, struct verbs_link *link, __u32 key,
			bool remote, enum ibv_wr_opcode op, struct ibv_mr *mr)
{
	struct ibv_mr fake = { .lkey = key, .rkey = key };
	struct verbs_end theirs = { self->shared->secret, &fake };
	struct verbs_end mine = { self->arena[PLAIN], mr };
	int status;

	status = verbs_do(link, op, remote ? mine : theirs,
			  remote ? theirs : mine, P2P_PAGE);
	ASSERT_LT(0, status)
		TH_LOG("key %#x: %s", key, verbs_str(status));
	ASSERT_EQ(P2P_PAGE, p2p_compare(self->arena[PLAIN], AFTER, 0, P2P_PAGE))
		TH_LOG("key %#x", key);
	ASSERT_EQ(0, verbs_unlink(link));
	ASSERT_EQ(0, verbs_link(&a->v, link));
}

/*
 * He reads and writes by keys of the victim as if they were his own, as the one who
 * asks and as the one who is asked. The device has to compare protection domains.
 * The victim checks that its memory has not changed.
 */
TEST_F_TIMEOUT(verbs_fuzz, foreign_keys, TIMEOUT_S)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
	};
	struct shared *shared = self->shared;
	struct verbs_link link;
	struct attacker a = { };
	unsigned int i, op;
	struct verbs_end own;
	struct ibv_mr *mr;
	__u32 off;

	setenv("P2P_VERBS_DEVICE",
	       ibv_get_device_name(self->verbs.v.ctx->device), 1);
	ASSERT_EQ(NULL, verbs_open(&a.v));
	ASSERT_EQ(0, verbs_link(&a.v, &link));
	mr = ibv_reg_mr(a.v.pd, self->arena[PLAIN], ARENA_LEN, VERBS_ODP);
	ASSERT_NE(NULL, mr);
	own = (struct verbs_end){ self->arena[PLAIN], mr };
	p2p_fill(self->arena[PLAIN], AFTER, 0, ARENA_LEN);
	for (i = 0; i < KEYS; i++) {
		/* With his own key it works */
		ASSERT_EQ(IBV_WC_SUCCESS, verbs_do(&link, IBV_WR_RDMA_WRITE, own,
						   own, P2P_PAGE));
		/* The victim's own keys first, then other indices and variants */
		off = ((i / 4) << 8) + (i % 4);
		for (op = 0; op < ARRAY_SIZE(ops); op++) {
			foreign_key(_metadata, self, &a, &link,
				    shared->rkey + off, true, ops[op], mr);
			foreign_key(_metadata, self, &a, &link,
				    shared->lkey + off, false, ops[op], mr);
		}
	}
	ASSERT_EQ(0, verbs_unlink(&link));
	store(shared->end, true);
	p2p_wait_child(_metadata, self->victim);
}

TEST_F_TIMEOUT(verbs_fuzz, write, TIMEOUT_S)
{
	attack(_metadata, self, write_call);
}

TEST_F_TIMEOUT(verbs_fuzz, ioctl, TIMEOUT_S)
{
	attack(_metadata, self, ioctl_call);
}

TEST_HARNESS_MAIN
