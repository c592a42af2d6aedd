/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_demo.h - what p2p_demo.c wants of a NIC
 *
 * A program has one NIC with one region: the test NIC of p2p_demo_nic.c, or
 * that of verbs/p2p_verbs_demo.c. Functions return 0 or a negative errno.
 */
#ifndef P2P_DEMO_H
#define P2P_DEMO_H

#include "p2ptest.h"

/* Tell its PCI name. If it fails: what did, and -ENOENT if there is no NIC */
int demo_nic_open(char name[P2P_PCI_NAME], const char **what);
/* Register the buffer; from now on the NIC can be asked how it reached pages */
int demo_nic_reg(void *addr, size_t len);
void demo_nic_close(void);

/* @buf to the buffer, and the buffer to @buf, by DMA. @xfer: what is known of it */
int demo_nic_write(const void *buf, struct p2ptest_nic_xfer *xfer);
int demo_nic_read(void *buf, struct p2ptest_nic_xfer *xfer);
/* How it reaches each page of the buffer after a DMA, and why */
int demo_nic_query(struct p2ptest_nic_page *pages);

#endif /* P2P_DEMO_H */
