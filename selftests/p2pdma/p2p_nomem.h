/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_nomem.h - do something again and again, so that each of its allocations
 * fails once, until none does
 *
 * See fail-nth in Documentation/fault-injection/fault-injection.rst. Unless
 * somebody has set up that any allocation may fail, only those do that can not
 * wait: so whoever has done so says it by P2PTEST_FAIL_NTH in the environment.
 */
#ifndef P2P_NOMEM_H
#define P2P_NOMEM_H

#include "p2p_harness.h"

/* A step that has more has no end */
#define NOMEM_MAX	4000U

/* Pages of a buffer: DMA is slow */
#define FEW	4U
#define SOME	16U

/* Says which allocation of this thread fails */
#define NOMEM_FILE	"/proc/thread-self/fail-nth"

struct nomem {
	int fd;
	unsigned int n;		/* the allocation that is to fail now */
	bool done;		/* it did not, so there is no other one */
	unsigned int failed;	/* allocations, in all steps */
};

/* False if this kernel can not do it, and the test is skipped */
static inline bool nomem_open(struct __test_metadata *_metadata,
			      struct nomem *nomem)
{
	if (!getenv("P2PTEST_FAIL_NTH"))
		SKIP(return false,
		     "P2PTEST_FAIL_NTH does not say that allocations fail");
	nomem->n = 0;
	nomem->done = false;
	nomem->fd = open(NOMEM_FILE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, nomem->fd);
	return true;
}

/* Allocation number @n of this thread fails, if that is not 0 */
static inline void nomem_set(struct __test_metadata *_metadata,
			     const struct nomem *nomem, unsigned int n)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", n);
	ASSERT_LT(0, pwrite(nomem->fd, text, strlen(text), 0));
}

/* No allocation fails any more; has that one failed? */
static inline bool nomem_end(struct __test_metadata *_metadata,
			     const struct nomem *nomem)
{
	char left[16] = "";

	ASSERT_LT(0, pread(nomem->fd, left, sizeof(left) - 1, 0));
	nomem_set(_metadata, nomem, 0);
	return strtoul(left, NULL, 10) == 0;
}

static inline bool nomem_next(struct __test_metadata *_metadata,
			      struct nomem *nomem, const char *step)
{
	if (nomem->done) {
		TH_LOG("%s: %u allocations failed", step, nomem->n - 1);
		nomem->failed += nomem->n - 1;
		nomem->n = 0;
		nomem->done = false;
		return false;
	}
	ASSERT_GT(NOMEM_MAX, nomem->n);
	nomem->n++;
	nomem->done = true;
	return true;
}

/* A step again and again; each time it has one call with NOMEM_CALL() */
#define for_each_allocation(nomem, step)				\
	for (; nomem_next(_metadata, nomem, step); )

/*
 * @call, which gives @ret, while an allocation fails. It may end well all the same.
 * If it does not, the error says why: for HMM, a page fault without memory is
 * EFAULT. @or is the error of something else that fails as if it were an
 * allocation, or that does not tell why it fails.
 */
#define NOMEM_CALL_OR(state, ret, or, call) do {			\
	__auto_type _state = (state);					\
	__auto_type _ret = &(ret);					\
									\
	nomem_set(_metadata, _state, _state->n);			\
	*_ret = (call);							\
	_state->done = !nomem_end(_metadata, _state);			\
	EXPECT_TRUE(*_ret >= 0 || (!_state->done &&			\
				   (*_ret == -ENOMEM || *_ret == -EFAULT || \
				    *_ret == (or)))) {			\
		TH_LOG("allocation %u, which %s: %s", _state->n,	\
		       _state->done ? "is none" : "failed",		\
		       strerror(-*_ret));				\
	}								\
} while (0)

#define NOMEM_CALL(state, ret, call)					\
	NOMEM_CALL_OR(state, ret, -ENOMEM, call)

/* Host memory is not mapped for DMA: fail_hmm_dma_map counts as an allocation */
#define NOMEM_NOT_MAPPED	(-EIO)
/* pci_request_region() does not tell why it fails */
#define NOMEM_NO_REGION		(-EBUSY)
/* Nor does module_add_driver(), of the module's folder for its drivers */
#define NOMEM_NO_DRIVERS_DIR	(-EINVAL)

/* Each half page of the buffer holds pages 0.. of one seed or of the other */
static inline void nomem_either(struct __test_metadata *_metadata,
				const struct p2p_buf *buf, __u64 one,
				__u64 other)
{
	const size_t half = P2P_PAGE / 2;
	size_t pos;

	for (pos = 0; pos < buf->len; pos += half) {
		if (p2p_compare(buf->p + pos, one, pos, half) != half)
			p2p_expect_pattern(_metadata, "neither", buf->p + pos,
					   other, pos, half);
	}
}

#endif /* P2P_NOMEM_H */
