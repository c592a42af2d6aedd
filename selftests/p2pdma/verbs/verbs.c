// SPDX-License-Identifier: GPL-2.0
/*
 * See verbs.h
 */
#define _GNU_SOURCE
#include "verbs.h"

#include "../p2ptest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH	16

/* rxe is the one that tells on which network device it is */
static bool is_software(const struct ibv_device *dev)
{
	char path[IBV_SYSFS_PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/parent", dev->ibdev_path);
	return !access(path, F_OK);
}

static uint8_t port_number(const char *variable)
{
	const char *text = getenv(variable);

	return text && *text ? strtoul(text, NULL, 0) : 1;
}

/* NULL, or why the device is of no use */
static const char *try_device(struct verbs *v, struct ibv_device *dev,
			      uint8_t number)
{
	const uint32_t need = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE |
			      IBV_ODP_SUPPORT_READ;
	const char *why = "the RDMA device cannot be opened";
	struct ibv_device_attr_ex attr;
	struct ibv_port_attr port;

	memset(v, 0, sizeof(*v));
	v->port = number;
	v->ctx = ibv_open_device(dev);
	if (!v->ctx)
		return why;
	why = "the RDMA device has no on-demand paging for RC";
	if (ibv_query_device_ex(v->ctx, NULL, &attr) ||
	    !(attr.odp_caps.general_caps & IBV_ODP_SUPPORT))
		goto close;
	v->odp = attr.odp_caps.per_transport_caps.rc_odp_caps;
	if ((v->odp & need) != need)
		goto close;
	why = "the port of the RDMA device is not active";
	if (ibv_query_port(v->ctx, v->port, &port) ||
	    port.state != IBV_PORT_ACTIVE)
		goto close;
	why = "the RDMA device gives no protection domain";
	v->pd = ibv_alloc_pd(v->ctx);
	if (!v->pd)
		goto close;
	v->implicit = attr.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT;
	v->atomic = attr.orig_attr.atomic_cap != IBV_ATOMIC_NONE;
	v->software = is_software(dev);
	return NULL;

close:
	ibv_close_device(v->ctx);
	v->ctx = NULL;
	return why;
}

/* Each test is a process of its own: load the providers once, before the forks */
static void __attribute__((constructor)) load_providers(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (list)
		ibv_free_device_list(list);
}

/* @name: NULL, or of the only device to try. @why: what to say if there is none. */
static const char *open_one(struct verbs *v, const char *name, uint8_t number,
			    const char *why)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	int i;

	for (i = 0; list && list[i] && why; i++) {
		if (!name || !strcmp(name, ibv_get_device_name(list[i])))
			why = try_device(v, list[i], number);
	}
	if (list)
		ibv_free_device_list(list);
	return why;
}

const char *verbs_open(struct verbs *v)
{
	const char *name = getenv("P2P_VERBS_DEVICE");
	const char *why = "no RDMA device";

	if (name && *name)
		why = "no RDMA device has the name in P2P_VERBS_DEVICE";
	else
		name = NULL;
	return open_one(v, name, port_number("P2P_VERBS_PORT"), why);
}

int verbs_pci_name(const struct verbs *v, char *name)
{
	char path[IBV_SYSFS_PATH_MAX + 16];

	snprintf(path, sizeof(path), "%s/device", v->ctx->device->ibdev_path);
	return p2p_pci_name_of(path, name);
}

bool verbs_has_peer(void)
{
	const char *name = getenv("P2P_VERBS_PEER");

	return name && *name;
}

const char *verbs_open_peer(struct verbs *v)
{
	return open_one(v, getenv("P2P_VERBS_PEER"),
			port_number("P2P_VERBS_PEER_PORT"),
			"no RDMA device has the name in P2P_VERBS_PEER");
}

int verbs_close(struct verbs *v)
{
	int ret = ibv_dealloc_pd(v->pd);

	return ret ? -ret : -ibv_close_device(v->ctx);
}

/* The address to talk to: the GID of an IPv4 address, or else the first one */
static int own_gid(const struct verbs *v, int entries, union ibv_gid *gid)
{
	static const unsigned char v4[12] = { [10] = 0xff, [11] = 0xff };
	int i;

	for (i = 0; i < entries; i++) {
		if (!ibv_query_gid(v->ctx, v->port, i, gid) &&
		    !memcmp(gid->raw, v4, sizeof(v4)))
			return i;
	}
	return ibv_query_gid(v->ctx, v->port, 0, gid) ? -1 : 0;
}

/* InfiniBand goes by LID; only Ethernet needs a GID */
static int address(const struct verbs *v, const struct verbs *far,
		   struct ibv_ah_attr *ah, enum ibv_mtu *mtu)
{
	struct ibv_port_attr port, there;
	union ibv_gid own;
	int index;

	if (ibv_query_port(v->ctx, v->port, &port) ||
	    ibv_query_port(far->ctx, far->port, &there))
		return -EIO;
	*mtu = port.active_mtu;
	if (there.active_mtu < *mtu)
		*mtu = there.active_mtu;
	*ah = (struct ibv_ah_attr){ .port_num = v->port, .dlid = there.lid };
	if (port.link_layer != IBV_LINK_LAYER_ETHERNET)
		return 0;
	index = own_gid(v, port.gid_tbl_len, &own);
	if (index < 0 ||
	    own_gid(far, there.gid_tbl_len, &ah->grh.dgid) < 0)
		return -EADDRNOTAVAIL;
	ah->is_global = 1;
	ah->grh.sgid_index = index;
	ah->grh.hop_limit = 64;
	return 0;
}

static int connect_qp(const struct verbs *v, const struct verbs *far,
		      struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = v->port,
		.qp_access_flags = VERBS_REMOTE,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = to,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 18, /* about a second */
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	int ret = address(v, far, &rtr.ah_attr, &rtr.path_mtu);

	if (ret)
		return ret;
	if (v->atomic)
		attr.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
	ret = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT |
			    IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
	if (ret)
		return -ret;
	ret = ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV |
			    IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (ret)
		return -ret;
	return -ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT |
			      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int verbs_link_from(const struct verbs *asks, const struct verbs *v,
		    struct verbs_link *link)
{
	const struct verbs *of[2] = { [ASKS] = asks, [ANSWERS] = v };
	struct ibv_qp_init_attr init = {
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	int ret = 0;
	int i;

	link->asks = asks;
	for (i = 0; i < 2; i++) {
		link->cq[i] = ibv_create_cq(of[i]->ctx, 2 * DEPTH, NULL, NULL, 0);
		if (!link->cq[i])
			return -errno;
		init.send_cq = link->cq[i];
		init.recv_cq = link->cq[i];
		link->qp[i] = ibv_create_qp(of[i]->pd, &init);
		if (!link->qp[i])
			return -errno;
	}
	for (i = 0; i < 2 && !ret; i++)
		ret = connect_qp(of[i], of[!i], link->qp[i],
				 link->qp[!i]->qp_num);
	return ret;
}

int verbs_link(const struct verbs *v, struct verbs_link *link)
{
	return verbs_link_from(v, v, link);
}

/* Who asks goes first, so that it does not ask one who has gone */
int verbs_unlink(struct verbs_link *link)
{
	int i, ret = 0;

	for (i = 0; i < 2 && !ret; i++) {
		ret = ibv_destroy_qp(link->qp[i]);
		if (!ret)
			ret = ibv_destroy_cq(link->cq[i]);
	}
	return -ret;
}

int verbs_qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	int ret = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);

	return ret ? -ret : (int)attr.qp_state;
}

int verbs_post(struct verbs_link *link, enum ibv_wr_opcode op,
	       struct verbs_end mine, struct verbs_end theirs, size_t len)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)theirs.p,
		.length = len,
	};
	struct ibv_recv_wr *bad_recv, recv = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = op,
	};
	int ret;

	if (op == IBV_WR_SEND) {
		sge.lkey = theirs.mr->lkey;
		ret = ibv_post_recv(link->qp[ANSWERS], &recv, &bad_recv);
		if (ret)
			return -ret;
	} else if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)theirs.p;
		wr.wr.atomic.rkey = theirs.mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)theirs.p;
		wr.wr.rdma.rkey = theirs.mr->rkey;
	}
	sge.addr = (uintptr_t)mine.p;
	sge.lkey = mine.mr->lkey;
	return -ibv_post_send(link->qp[ASKS], &wr, &bad);
}

int verbs_wait(struct verbs_link *link, int side)
{
	__u64 end = p2p_now_ms() + VERBS_WAIT_MS;
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(link->cq[side], 1, &wc);
		if (n)
			return n < 0 ? -EIO : (int)wc.status;
		p2p_sleep_ms(1);
	} while (p2p_now_ms() < end);
	return -ETIMEDOUT;
}

int verbs_do(struct verbs_link *link, enum ibv_wr_opcode op,
	     struct verbs_end mine, struct verbs_end theirs, size_t len)
{
	int ret = verbs_post(link, op, mine, theirs, len);

	if (!ret)
		ret = verbs_wait(link, ASKS);
	if (ret == IBV_WC_SUCCESS && op == IBV_WR_SEND)
		ret = verbs_wait(link, ANSWERS);
	return ret;
}

int verbs_do_moving(const struct verbs *v, struct verbs_link *link,
		    enum ibv_wr_opcode op, struct verbs_end mine,
		    struct verbs_end theirs, size_t len, unsigned int *late)
{
	__u64 start;
	int status;

	for (;;) {
		start = p2p_now_ms();
		status = verbs_do(link, op, mine, theirs, len);
		if (status != IBV_WC_REM_ACCESS_ERR &&
		    status != IBV_WC_REM_OP_ERR && status != IBV_WC_LOC_PROT_ERR)
			return status;
		if (p2p_now_ms() - start < FAULT_MS)
			return status;
		if (verbs_unlink(link) ||
		    verbs_link_from(link->asks, v, link))
			return status;
		if (late)
			(*late)++;
	}
}

const char *verbs_str(int status)
{
	return status < 0 ? strerror(-status) : ibv_wc_status_str(status);
}
