// SPDX-License-Identifier: GPL-2.0
/*
 * Test of hmm_range_fault() with peer-to-peer DMA: GPU and NIC go away and come
 * back, at random, while processes use them or not
 *
 * Some processes own a buffer each. They move it to VRAM and home, and write and
 * read it by CPU, GPU and NIC, which faults pages, or as a card has them registered
 * all the time. Meanwhile the test takes one of the two devices away,
 * by one of the ways in which that happens to devices. Afterwards each page must
 * hold what was last written to it, and must be at home if the GPU is gone. As soon
 * as the device is back, it must work, and count as used what the processes have in
 * VRAM.
 *
 *	P2P_STRESS_SEED		1 unless it is set
 *	P2P_STRESS_MINUTES	go on for so long, and not only VANISH times
 *	P2PTEST_HOTPLUG		a port whose other end unplugs and plugs devices, and
 *				injects errors
 *	P2PTEST_SUSPEND		a command that suspends the machine as far as a PCI
 *				device, its argument, and returns 0 when it has resumed
 *
 * The device in question, the way, and what the processes do depend on the seed
 * alone. When they do it is up to the scheduler.
 */
#include "p2p_fixture.h"

#include <stdarg.h>

#define VANISH	120U	/* times that a device goes away */
#define OUTSIDE	48U	/* and by somebody outside */
#define PROCS	3U
#define PAGES	8U
#define HALF	(P2P_PAGE / 2)	/* the NIC transfers no more at a time */

enum { GPU, NIC };

static const char *const device_names[] = { "GPU", "NIC" };

/* What all processes share */
struct shared {
	__u64 seed;
	unsigned int step;	/* of the test */
	const char *way;
	/*
	 * While this is odd, the NIC may lose DMA and not tell. A transfer knows
	 * that it was not affected if it saw the same even number before and after.
	 */
	unsigned int lossy;
	unsigned int look;	/* so often all have to look at their pages */
	bool run;
	bool gpu_gone;
	bool lost;		/* what was in VRAM may be */
	bool end;
	bool stop;		/* something is wrong, and is reported */
	struct {
		unsigned int looked;
		long resident;
		unsigned int lost;	/* pages */
	} proc[PROCS];
};

static struct shared *shared;

struct worker {
	unsigned int number;
	unsigned int random;
	unsigned int op;
	struct p2p_gpu gpu;
	struct p2p_nic nic;
	bool registered;
	struct p2p_buf buf;
	__u32 card_buf, card_data;	/* what the NIC as a card calls them */
	__u64 want[PAGES];	/* seed of each page */
	bool in_vram[PAGES];	/* when this process last looked */
	__u64 next;
	unsigned char *data;	/* a page */
};

#define load(x)		__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define store(x, v)	__atomic_store_n(&(x), v, __ATOMIC_RELEASE)

/* Report the first error, and end everything */
__printf(2, 3)
static void wrong(struct worker *w, const char *fmt, ...)
{
	char text[200];
	va_list args;

	if (__atomic_exchange_n(&shared->stop, true, __ATOMIC_ACQ_REL))
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fprintf(TH_LOG_STREAM, "# seed %llu, step %u (%s), process %u, op %u: %s\n",
		shared->seed, shared->step, shared->way, w->number, w->op, text);
}

static unsigned int dice(unsigned int *random, unsigned int sides)
{
	return rand_r(random) % sides;
}

static unsigned char *page_at(struct worker *w, unsigned int i)
{
	return w->buf.p + i * P2P_PAGE;
}

static bool holds(const unsigned char *p, __u64 seed, size_t pos, size_t len)
{
	return p2p_compare(p, seed, pos, len) == len;
}

/* A device that is not there reads as ones on hardware, and as zeros in QEMU */
static bool is_nothing(unsigned char byte)
{
	return !byte || byte == 0xff;
}

static void check(struct worker *w, const char *who, unsigned int i,
		  const unsigned char *p)
{
	size_t same = p2p_compare(p, w->want[i], 0, P2P_PAGE);
	bool lost = load(shared->lost) && (load(shared->run) || w->in_vram[i]);

	while (lost && same < P2P_PAGE && is_nothing(p[same]))
		same += 1 + p2p_compare(p + same + 1, w->want[i], same + 1,
					P2P_PAGE - same - 1);
	if (same != P2P_PAGE)
		wrong(w, "%s: page %u, byte %zu is %#x", who, i, same, p[same]);
}

/*
 * A write that did not end well: each half is old or new, unless the device could not
 * read what it was to write: then it may have written anything that it had, but never
 * what VRAM holds when it is free. Afterwards the CPU makes it new.
 */
static void settle(struct worker *w, const char *who, unsigned int i, __u64 new,
		   bool anything)
{
	unsigned char *p = page_at(w, i);
	size_t pos;

	for (pos = 0; pos < P2P_PAGE; pos += HALF) {
		if (p2p_compare_byte(p + pos, P2PTEST_GPU_POISON, HALF) == HALF)
			wrong(w, "%s: page %u, byte %zu on, is free VRAM", who, i,
			      pos);
		if (anything)
			continue;
		if (!holds(p + pos, w->want[i], pos, HALF) &&
		    !holds(p + pos, new, pos, HALF))
			wrong(w, "%s: page %u, byte %zu on, is neither old nor new: %#x",
			      who, i, pos, p[pos]);
	}
	p2p_fill(p, new, 0, P2P_PAGE);
	w->want[i] = new;
}

/* Devices */

/* A file of a device that has gone is of no use any more */
static bool gone(struct worker *w, int dev, const char *call, long ret)
{
	if (ret == -ENODEV) {
		if (dev == GPU) {
			p2p_gpu_close(&w->gpu);
		} else {
			p2p_nic_close(&w->nic);
			w->registered = false;
		}
		return true;
	}
	wrong(w, "%s: %s", call, strerror(-ret));
	return false;
}

static void open_again(struct worker *w)
{
	int ret;

	if (w->gpu.fd < 0 && p2p_gpu_open(&w->gpu, 0))
		w->gpu.fd = -1;
	if (w->nic.fd < 0 && p2p_nic_open(&w->nic, 0))
		w->nic.fd = -1;
	if (w->nic.fd < 0 || w->registered)
		return;
	ret = p2p_nic_reg(&w->nic, w->buf.p, w->buf.len, P2PTEST_NIC_MR_WRITE,
			  &w->buf.handle);
	if (!ret)
		ret = p2p_nic_pin(&w->nic, w->buf.p, w->buf.len,
				  P2PTEST_NIC_MR_WRITE, &w->card_buf);
	if (!ret)
		ret = p2p_nic_pin(&w->nic, w->data, P2P_PAGE,
				  P2PTEST_NIC_MR_WRITE, &w->card_data);
	w->registered = !ret;
	if (ret)
		gone(w, NIC, "register", ret);
}

/* Between page @i and @w->data */
static int nic_page(struct worker *w, unsigned int i, bool write, bool card)
{
	struct p2ptest_nic_copy copy = {
		.src = write ? w->card_data : w->card_buf,
		.dst = write ? w->card_buf : w->card_data,
		.src_offset = write ? 0 : i * P2P_PAGE,
		.dst_offset = write ? i * P2P_PAGE : 0,
		.len = P2P_PAGE,
	};

	if (card)
		return p2p_nic_copy(&w->nic, &copy);
	if (write)
		return p2p_nic_write(&w->nic, w->buf.handle, page_at(w, i),
				     w->data, P2P_PAGE, NULL);
	return p2p_nic_read(&w->nic, w->buf.handle, page_at(w, i), w->data,
			    P2P_PAGE, NULL);
}

static void nic_transfer(struct worker *w, unsigned int i, bool write, bool card)
{
	unsigned int lossy = load(shared->lossy);
	__u64 new = w->next++;
	bool lost = true;
	int ret;

	if (write)
		p2p_fill(w->data, new, 0, P2P_PAGE);
	else
		memset(w->data, 0, P2P_PAGE);
	ret = nic_page(w, i, write, card);
	/* It may be lossy from now on, but not from before */
	if (!(lossy & 1) && lossy == load(shared->lossy)) {
		lost = false;
		if (!ret && write)
			w->want[i] = new;
		else if (!ret)
			check(w, "NIC read", i, w->data);
		if (!ret)
			return;
		gone(w, NIC, write ? "NIC write" : "NIC read", ret);
	} else if (ret == -ENODEV) {
		gone(w, NIC, "", ret);
	} else if (ret && ret != -EIO) {
		wrong(w, "NIC: %s", strerror(-ret));
	}
	if (write)
		settle(w, "NIC write", i, new, lost || load(shared->lost));
}

static void gpu_transfer(struct worker *w, unsigned int i, bool write)
{
	__u64 new = w->next++;
	long ret;

	if (write) {
		p2p_fill(w->data, new, 0, P2P_PAGE);
		ret = p2p_gpu_write(&w->gpu, page_at(w, i), w->data, P2P_PAGE);
	} else {
		memset(w->data, 0, P2P_PAGE);
		ret = p2p_gpu_read(&w->gpu, page_at(w, i), w->data, P2P_PAGE);
	}
	if (ret >= 0 && write)
		w->want[i] = new;
	else if (ret >= 0)
		check(w, "GPU read", i, w->data);
	else if (gone(w, GPU, write ? "GPU write" : "GPU read", ret) && write)
		settle(w, "GPU write", i, new, load(shared->lost));
}

static void move(struct worker *w, bool in, unsigned int from, unsigned int n)
{
	long ret = in ? p2p_gpu_to_vram(&w->gpu, page_at(w, from), n * P2P_PAGE) :
			p2p_gpu_to_host(&w->gpu, page_at(w, from), n * P2P_PAGE);

	if (ret < 0)
		gone(w, GPU, in ? "to VRAM" : "to host", ret);
}

static void work(struct worker *w)
{
	unsigned int i = dice(&w->random, PAGES);

	open_again(w);
	w->op = dice(&w->random, 13);
	switch (w->op) {
	case 0:
	case 1:
		p2p_fill(page_at(w, i), w->next, 0, P2P_PAGE);
		w->want[i] = w->next++;
		break;
	case 2:
		check(w, "CPU read", i, page_at(w, i));
		break;
	case 3:
	case 4:
	case 5:
		if (w->registered)
			nic_transfer(w, i, w->op != 3, false);
		break;
	case 6:
	case 7:
	case 8:
		if (w->registered)
			nic_transfer(w, i, w->op != 6, true);
		break;
	case 9:
	case 10:
		if (w->gpu.fd >= 0)
			gpu_transfer(w, i, w->op == 9);
		break;
	default:
		if (w->gpu.fd >= 0)
			move(w, dice(&w->random, 4), i, PAGES - i);
		break;
	}
	p2p_sleep_ms(1);
}

/* Where are the pages, and what is in them? */
static void look(struct worker *w, unsigned int turn)
{
	unsigned int i;
	long n;

	open_again(w);
	if (w->gpu.fd >= 0)
		move(w, true, PAGES / 4, PAGES / 2);
	if (load(shared->gpu_gone)) {
		n = p2p_device_private(w->buf.p, w->buf.len);
		if (n)
			wrong(w, "the GPU is gone, and has %ld pages", n);
	}
	for (i = 0; i < PAGES; i++) {
		if (w->gpu.fd >= 0)
			gpu_transfer(w, i, false);
		else
			check(w, "CPU read", i, page_at(w, i));
		if (load(shared->lost) && !holds(page_at(w, i), w->want[i], 0, P2P_PAGE)) {
			shared->proc[w->number].lost++;
			p2p_fill(page_at(w, i), w->want[i], 0, P2P_PAGE);
		}
	}
	n = 0;
	if (w->gpu.fd >= 0) {
		n = p2p_gpu_resident(&w->gpu, w->buf.p, w->buf.len);
		if (n < 0)
			gone(w, GPU, "lookup", n);
	}
	for (i = 0; i < PAGES; i++)
		w->in_vram[i] = p2p_device_private(page_at(w, i), P2P_PAGE) == 1;
	shared->proc[w->number].resident = n;
	store(shared->proc[w->number].looked, turn);
}

static void worker(struct __test_metadata *_metadata, unsigned int number)
{
	struct worker w = {
		.number = number,
		.random = shared->seed * 1000 + number,
		.gpu.fd = -1,
		.nic.fd = -1,
		/* Streams of different seeds must not be shifts of each other */
		.next = ((__u64)number + 1) << 40,
	};
	unsigned int turn = 0, i;

	p2p_buf_alloc(_metadata, &w.buf, PAGES, 0);
	w.data = p2p_alloc(P2P_PAGE);
	ASSERT_NE(NULL, w.data);
	for (i = 0; i < PAGES; i++) {
		w.want[i] = w.next++;
		p2p_fill(page_at(&w, i), w.want[i], 0, P2P_PAGE);
	}
	while (!load(shared->end) && !load(shared->stop)) {
		if (turn != load(shared->look))
			look(&w, ++turn);
		else if (load(shared->run))
			work(&w);
		else
			p2p_sleep_ms(2);
	}
	_exit(load(shared->stop));
}

/* The test itself */

FIXTURE(p2p_vanish)
{
	P2P_SELF p2p;
	char name[2][P2P_PCI_NAME];
	char port[2][P2P_PCI_NAME];	/* of the slot */
	bool slots;
	bool hotplug;		/* the kernel looks after them */
	bool unplugs;
};

#define SELF FIXTURE_DATA(p2p_vanish)

FIXTURE_SETUP(p2p_vanish)
{
	p2p_setup(_metadata, &self->p2p, NULL);
	if (self->p2p.nic.fd < 0)
		return;
	ASSERT_EQ(0, p2p_pci_name(P2P_GPU_DRIVER, 0, self->name[GPU]));
	ASSERT_EQ(0, p2p_pci_name(P2P_NIC_DRIVER, 0, self->name[NIC]));
	self->slots = !p2p_pci_slot(self->name[GPU], self->port[GPU]) &&
		      !p2p_pci_slot(self->name[NIC], self->port[NIC]);
	self->hotplug = p2p_pci_hotplug();
}

static const char *const driver[] = { P2P_GPU_DRIVER, P2P_NIC_DRIVER };

/* What somebody outside calls them */
static const char *const outside_names[] = { "gpu0", "nic0" };

static void outside(const char *op, int dev, const char *error, char *answer,
		    size_t size)
{
	p2p_outside(op, outside_names[dev], error, answer, size);
}

FIXTURE_TEARDOWN_PARENT(p2p_vanish)
{
	char answer[80];

	/* Also if the test did not get that far */
	if (self->unplugs) {
		outside("plug", GPU, NULL, answer, sizeof(answer));
		outside("plug", NIC, NULL, answer, sizeof(answer));
	}
	if (self->slots && !self->hotplug) {
		p2p_pci_slot_power(self->port[GPU], true);
		p2p_pci_slot_power(self->port[NIC], true);
	}
	p2p_pci_rescan();
	p2p_pci_bind(P2P_GPU_DRIVER, self->name[GPU], 0);
	p2p_pci_bind(P2P_NIC_DRIVER, self->name[NIC], 0);
	p2p_teardown(_metadata, &self->p2p, NULL);
}

/* All processes look at their pages now; what they have in VRAM together */
static long all_look(struct __test_metadata *_metadata)
{
	unsigned int turn = ++shared->look, i;
	long resident = 0;

	for (i = 0; i < PROCS; i++) {
		while (load(shared->proc[i].looked) != turn) {
			ASSERT_FALSE(load(shared->stop));
			p2p_sleep_ms(5);
		}
		resident += shared->proc[i].resident;
	}
	return resident;
}

static void wait_open(struct __test_metadata *_metadata, P2P_SELF *p2p)
{
	int i;

	p2p_gpu_close(&p2p->gpu);
	for (i = 0; p2p_gpu_open(&p2p->gpu, 0); i++) {
		ASSERT_GT(1000, i)
			TH_LOG("the GPU does not come back");
		p2p_sleep_ms(20);
	}
	p2p_nic_close(&p2p->nic);
	for (i = 0; p2p_nic_open(&p2p->nic, 0); i++) {
		ASSERT_GT(1000, i)
			TH_LOG("the NIC does not come back");
		p2p_sleep_ms(20);
	}
}

static void unbind(struct __test_metadata *_metadata, SELF *self,
		   int dev)
{
	ASSERT_EQ(0, p2p_pci_unbind(driver[dev], self->name[dev]));
	store(shared->gpu_gone, dev == GPU);
	all_look(_metadata);
	store(shared->gpu_gone, false);
	ASSERT_EQ(0, p2p_pci_bind(driver[dev], self->name[dev], 0));
}

static void remove_device(struct __test_metadata *_metadata,
			  SELF *self, int dev)
{
	ASSERT_EQ(0, p2p_pci_attr_set(self->name[dev], "remove", "1"));
	store(shared->gpu_gone, dev == GPU);
	all_look(_metadata);
	store(shared->gpu_gone, false);
	ASSERT_EQ(0, p2p_pci_rescan());
}

/*
 * A GPU would lose its memory; the test GPU's stays, but cannot be reached
 * meanwhile, and its driver does not know. So nobody uses it then. The driver of
 * the NIC gives it up if it does not answer, until it is bound again.
 */
static void reset(struct __test_metadata *_metadata, SELF *self,
		  int dev)
{
	if (dev == GPU) {
		store(shared->run, false);
		all_look(_metadata);
	}
	shared->lossy++;
	ASSERT_EQ(0, p2p_pci_attr_set(self->name[dev], "reset", "1"));
	if (dev == NIC) {
		ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->name[NIC]));
		ASSERT_EQ(0, p2p_pci_bind(P2P_NIC_DRIVER, self->name[NIC], 0));
	}
	shared->lossy++;
}

static void master_off(struct __test_metadata *_metadata,
		       SELF *self, int dev)
{
	/* The GPU asks nobody for anything */
	shared->lossy += dev == NIC;
	ASSERT_LE(0, p2p_pci_command(self->name[dev], P2P_PCI_MASTER, 0));
	p2p_sleep_ms(4 * TRANSFER_MS);
	ASSERT_LE(0, p2p_pci_command(self->name[dev], 0, P2P_PCI_MASTER));
	shared->lossy += dev == NIC;
}

/*
 * The NIC does not answer, as if it were pulled out. Its driver gives it up, until
 * it is bound again. The driver of the GPU has nothing to tell that by.
 */
static void surprise(struct __test_metadata *_metadata,
		     SELF *self, int dev __always_unused)
{
	shared->lossy++;
	ASSERT_LE(0, p2p_pci_command(self->name[NIC], P2P_PCI_MEMORY, 0));
	p2p_sleep_ms(TRANSFER_MS);
	ASSERT_EQ(0, p2p_pci_unbind(P2P_NIC_DRIVER, self->name[NIC]));
	all_look(_metadata);
	ASSERT_LE(0, p2p_pci_command(self->name[NIC], 0, P2P_PCI_MEMORY));
	ASSERT_EQ(0, p2p_pci_bind(P2P_NIC_DRIVER, self->name[NIC], 0));
	shared->lossy++;
}

/*
 * The device is pulled out of its slot, and put back: it is away from the bus, and comes
 * back without addresses. The NIC goes while it is in use. The GPU's driver has the time
 * to move pages home: what VRAM holds is lost without power.
 */
static void slot(struct __test_metadata *_metadata, SELF *self, int dev)
{
	if (!self->slots || self->hotplug) {
		remove_device(_metadata, self, dev);
		return;
	}
	shared->lossy += dev == NIC;
	if (dev == NIC) {
		ASSERT_EQ(0, p2p_pci_slot_power(self->port[NIC], false));
		p2p_sleep_ms(TRANSFER_MS);
		ASSERT_EQ(0xff, p2p_pci_command(self->name[NIC], 0, 0));
	}
	ASSERT_EQ(0, p2p_pci_attr_set(self->name[dev], "remove", "1"));
	if (dev == GPU)
		ASSERT_EQ(0, p2p_pci_slot_power(self->port[GPU], false));
	store(shared->gpu_gone, dev == GPU);
	all_look(_metadata);
	/* Nobody is there */
	ASSERT_EQ(0, p2p_pci_rescan());
	ASSERT_EQ(-ENOENT, p2p_pci_command(self->name[dev], 0, 0));
	ASSERT_EQ(0, p2p_pci_slot_power(self->port[dev], true));
	store(shared->gpu_gone, false);
	ASSERT_EQ(0, p2p_pci_rescan());
	shared->lossy += dev == NIC;
}

/*
 * Somebody presses the button of the slot. The kernel lets the device go and switches the
 * slot off; only then is the device taken out, and later put back.
 */
static void unplug(struct __test_metadata *_metadata, SELF *self, int dev)
{
	char answer[200];

	outside("unplug", dev, NULL, answer, sizeof(answer));
	ASSERT_STREQ("ok", answer);
	store(shared->gpu_gone, dev == GPU);
	/* Nobody is there */
	ASSERT_EQ(0, p2p_pci_rescan());
	ASSERT_EQ(-ENOENT, p2p_pci_command(self->name[dev], 0, 0));
	all_look(_metadata);
	store(shared->gpu_gone, false);
	outside("plug", dev, NULL, answer, sizeof(answer));
	ASSERT_STREQ("ok", answer);
}

/*
 * The device is pulled out, and the kernel does not notice. What was in VRAM is lost.
 */
static void pull(struct __test_metadata *_metadata, SELF *self, int dev)
{
	char answer[200];

	shared->lossy++;
	store(shared->lost, dev == GPU);
	ASSERT_EQ(0, p2p_pci_slot_pull(self->port[dev]));
	p2p_sleep_ms(TRANSFER_MS);
	ASSERT_EQ(0xff, p2p_pci_command(self->name[dev], 0, 0));
	ASSERT_EQ(0, p2p_pci_attr_set(self->name[dev], "remove", "1"));
	store(shared->gpu_gone, dev == GPU);
	all_look(_metadata);
	store(shared->lost, false);
	/* Nobody is there */
	ASSERT_EQ(0, p2p_pci_rescan());
	ASSERT_EQ(-ENOENT, p2p_pci_command(self->name[dev], 0, 0));
	store(shared->gpu_gone, false);
	outside("plug", dev, NULL, answer, sizeof(answer));
	ASSERT_STREQ("ok", answer);
	ASSERT_EQ(0, p2p_pci_slot_power(self->port[dev], true));
	ASSERT_EQ(0, p2p_pci_rescan());
	shared->lossy++;
}

/* How many errors the root port above the switch has seen */
static long errors_seen(SELF *self, int dev, bool fatal)
{
	const char *attr = fatal ? "../../../aer_rootport_total_err_fatal" :
				   "../../../aer_rootport_total_err_nonfatal";
	char text[32];

	if (p2p_pci_attr_get(self->name[dev], attr, text, sizeof(text)))
		return -1;
	return strtol(text, NULL, 10);
}

/*
 * The port above the device reports an error. The drivers do not know what to do then, so
 * the kernel gives the device up. It has to be removed and found again.
 */
static void error_at_port(struct __test_metadata *_metadata, SELF *self, int dev,
			  bool fatal)
{
	long before = errors_seen(self, dev, fatal);
	char answer[200];
	int i;

	ASSERT_LE(0, before);
	outside("error", dev, fatal ? "MALF_TLP" : "POISON_TLP", answer,
		sizeof(answer));
	ASSERT_STREQ("ok", answer);
	for (i = 0; errors_seen(self, dev, fatal) == before; i++) {
		ASSERT_GT(1000, i)
			TH_LOG("nobody has seen the error");
		p2p_sleep_ms(10);
	}
	/* A reset comes after a fatal one */
	for (i = 0; fatal && p2p_pci_command(self->name[dev], 0, 0) &
			     P2P_PCI_MEMORY; i++) {
		ASSERT_GT(1000, i)
			TH_LOG("the device was not reset");
		p2p_sleep_ms(10);
	}
	p2p_sleep_ms(500);
	remove_device(_metadata, self, dev);
}

static void nonfatal(struct __test_metadata *_metadata, SELF *self, int dev)
{
	error_at_port(_metadata, self, dev, false);
}

/* The memory of a GPU would be out of reach for good */
static void fatal(struct __test_metadata *_metadata, SELF *self,
		  int dev __always_unused)
{
	shared->lossy++;
	error_at_port(_metadata, self, NIC, true);
	shared->lossy++;
}

/*
 * The machine is suspended, and resumes. The processes do not notice: what the NIC
 * transfers is complete before it is suspended, and VRAM keeps what is in it.
 */
static void suspend(struct __test_metadata *_metadata, SELF *self, int dev)
{
	char command[200];

	snprintf(command, sizeof(command), "%s %s", getenv("P2PTEST_SUSPEND"),
		 self->name[dev]);
	ASSERT_EQ(0, system(command));
}

static const struct way {
	const char *name;
	void (*run)(struct __test_metadata *_metadata, SELF *self,
		    int dev);
	bool only_nic;
} ways_inside[] = {
	{ .name = "unbind", .run = unbind },
	{ .name = "remove", .run = remove_device },
	{ .name = "reset", .run = reset },
	{ .name = "bus master off", .run = master_off },
	{ .name = "surprise", .run = surprise, .only_nic = true },
	{ .name = "slot", .run = slot },
};

static const struct way ways_outside[] = {
	{ .name = "unplug", .run = unplug },
	{ .name = "error", .run = nonfatal },
	{ .name = "fatal error", .run = fatal, .only_nic = true },
};

static const struct way ways_pulled[] = {
	{ .name = "pulled", .run = pull },
};

static const struct way ways_suspended[] = {
	{ .name = "suspended", .run = suspend },
};

static __u64 number_from(const char *name, __u64 otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void play(struct __test_metadata *_metadata, SELF *self,
		 const struct way *ways, unsigned int n, unsigned int most)
{
	__u64 minutes = number_from("P2P_STRESS_MINUTES", 0);
	unsigned int random, steps, i, dev, nr, busy = 0;
	unsigned int times[ARRAY_SIZE(ways_inside)][2] = { };
	__u64 start = p2p_now_ms();
	struct p2ptest_gpu_info info;
	const struct way *way;
	pid_t pid[PROCS];
	long resident;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)shared);
	shared->seed = number_from("P2P_STRESS_SEED", 1);
	shared->way = "begin";
	random = shared->seed;
	for (i = 0; i < PROCS; i++) {
		pid[i] = p2p_fork_child(_metadata);
		if (!pid[i])
			worker(_metadata, i);
	}
	for (steps = 0; minutes ? p2p_now_ms() - start < minutes * 60000 :
				  steps < most; steps++) {
		dev = dice(&random, 2);
		nr = dice(&random, n);
		way = &ways[nr];
		if (way->only_nic)
			dev = NIC;
		shared->step = steps;
		shared->way = way->name;
		store(shared->run, dice(&random, 3));
		busy += shared->run;
		p2p_sleep_ms(shared->run ? dice(&random, 500) : 1);
		way->run(_metadata, self, dev);
		times[nr][dev]++;

		store(shared->run, false);
		wait_open(_metadata, &self->p2p);
		resident = all_look(_metadata);
		ASSERT_EQ(0, p2p_gpu_wait_used(&self->p2p.gpu, resident))
			TH_LOG("step %u, %s of the %s: %ld pages are in VRAM, %llu used",
			       steps, way->name, device_names[dev], resident,
			       p2p_info(_metadata, &self->p2p.gpu).pages_used);
		info = p2p_info(_metadata, &self->p2p.gpu);
		ASSERT_EQ(info.vram_size / P2P_PAGE,
			  info.pages_used + info.pages_free);
	}
	store(shared->end, true);
	for (i = 0; i < PROCS; i++)
		p2p_wait_child(_metadata, pid[i]);
	ksft_print_msg("stress: seed %llu, %u times a device was gone, %u of them busy, in %llu s:",
		       shared->seed, steps, busy, (p2p_now_ms() - start) / 1000);
	for (i = 0; i < n; i++)
		printf(" %s %u GPU, %u NIC;", ways[i].name, times[i][GPU],
		       times[i][NIC]);
	printf("\n");
	EXPECT_FALSE(shared->stop);
}

TEST_F_TIMEOUT(p2p_vanish, random, TIMEOUT_S)
{
	play(_metadata, self, ways_inside, ARRAY_SIZE(ways_inside), VANISH);
}

TEST_F_TIMEOUT(p2p_vanish, outside, TIMEOUT_S)
{
	if (!getenv("P2PTEST_HOTPLUG"))
		SKIP(return, "nobody outside unplugs devices: P2PTEST_HOTPLUG is not set");
	self->unplugs = true;
	play(_metadata, self, ways_outside, ARRAY_SIZE(ways_outside), OUTSIDE);
}

TEST_F_TIMEOUT(p2p_vanish, pulled, TIMEOUT_S)
{
	unsigned int i, lost = 0;

	if (!getenv("P2PTEST_HOTPLUG"))
		SKIP(return, "nobody outside unplugs devices: P2PTEST_HOTPLUG is not set");
	/* That is how the slot loses its device, see p2p_pci_slot_pull() */
	if (self->hotplug)
		SKIP(return, "pciehp takes a slot without power for empty");
	ASSERT_TRUE(self->slots);
	self->unplugs = true;
	play(_metadata, self, ways_pulled, ARRAY_SIZE(ways_pulled), OUTSIDE);
	for (i = 0; i < PROCS; i++)
		lost += shared->proc[i].lost;
	ksft_print_msg("stress: %u pages were lost with the GPU\n", lost);
	/* Otherwise it held nothing when it was pulled out */
	EXPECT_LT(0U, lost);
}

TEST_F_TIMEOUT(p2p_vanish, suspended, TIMEOUT_S)
{
	if (!getenv("P2PTEST_SUSPEND"))
		SKIP(return, "P2PTEST_SUSPEND does not say how to suspend");
	play(_metadata, self, ways_suspended, ARRAY_SIZE(ways_suspended), OUTSIDE);
}

TEST_HARNESS_MAIN
