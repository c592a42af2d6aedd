/* SPDX-License-Identifier: GPL-2.0 */
/*
 * verbs.h - RDMA devices by their verbs, and two queue pairs that talk to each
 * other, of one device or of two
 *
 * It knows how to ask for a transfer and how to wait for its end, not how it
 * should end: expectations are in verbs_fixture.h and in the tests.
 */
#ifndef VERBS_H
#define VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* Emulated devices are slow; one that has lost a request is slower */
#define VERBS_WAIT_MS	30000

/*
 * The kernel ends a page fault with an error if its memory has not stayed where
 * it is for so long (HMM_RANGE_DEFAULT_TIMEOUT)
 */
#define FAULT_MS	1000

/* What regions allow */
#define VERBS_REMOTE	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | \
			 IBV_ACCESS_REMOTE_WRITE)
#define VERBS_ODP	(VERBS_REMOTE | IBV_ACCESS_ON_DEMAND)

struct verbs {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	uint8_t port;
	bool software;		/* has no DMA: the CPU copies */
	bool implicit;		/* has regions that are the address space */
	bool atomic;		/* has atomic operations */
	uint32_t odp;		/* IBV_ODP_SUPPORT_* of reliable connections */
};

/*
 * Open device $P2P_VERBS_DEVICE, or else the first one with on-demand paging
 * for reliable connections and an active port: $P2P_VERBS_PORT, or else 1. NULL,
 * or why there is none.
 */
const char *verbs_open(struct verbs *v);
/* PCI name of the device, of P2P_PCI_NAME bytes, or a negative errno */
int verbs_pci_name(const struct verbs *v, char *name);
/*
 * Open the device that asks that one, if it is another: $P2P_VERBS_PEER, with port
 * $P2P_VERBS_PEER_PORT, or else 1. It may be the same device with another port.
 */
bool verbs_has_peer(void);
const char *verbs_open_peer(struct verbs *v);
/* 0 or a negative errno; all that was made by it must be gone */
int verbs_close(struct verbs *v);

enum { ASKS, ANSWERS };

/* Two queue pairs that are connected, with a completion queue each */
struct verbs_link {
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];	/* who asks, and who answers */
	const struct verbs *asks;
};

/* These return 0 or a negative errno */
int verbs_link(const struct verbs *v, struct verbs_link *link);
/* As verbs_link(), but another device, or port, asks */
int verbs_link_from(const struct verbs *asks, const struct verbs *v,
		    struct verbs_link *link);
int verbs_unlink(struct verbs_link *link);
int verbs_qp_state(struct ibv_qp *qp);

/* One side of a transfer */
struct verbs_end {
	void *p;
	struct ibv_mr *mr;
};

/*
 * Ask for a transfer between @mine, of who asks, and @theirs. For a message,
 * IBV_WR_SEND, the receive is posted first. 0 or a negative errno.
 */
int verbs_post(struct verbs_link *link, enum ibv_wr_opcode op,
	       struct verbs_end mine, struct verbs_end theirs, size_t len);
/* Status of the next completion, or a negative errno: -ETIMEDOUT if none comes */
int verbs_wait(struct verbs_link *link, int side);
/* Both, and the completion of the receive if the message was sent well */
int verbs_do(struct verbs_link *link, enum ibv_wr_opcode op,
	     struct verbs_end mine, struct verbs_end theirs, size_t len);
/*
 * While pages move, a page fault may run out of time on a busy machine: then
 * this repeats the transfer, and counts it in @late unless that is NULL. An error
 * that comes sooner has another cause.
 */
int verbs_do_moving(const struct verbs *v, struct verbs_link *link,
		    enum ibv_wr_opcode op, struct verbs_end mine,
		    struct verbs_end theirs, size_t len, unsigned int *late);
/* What these return, in words */
const char *verbs_str(int status);

#endif /* VERBS_H */
