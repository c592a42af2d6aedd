/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A client of nv-p2p that does what such drivers do, on QEMU's edu. Each open
 * file of /dev/nv_p2p_client has one buffer.
 */
#ifndef NV_P2P_CLIENT_H
#define NV_P2P_CLIENT_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define CLIENT_NO_CALLBACK	1
#define CLIENT_FREE_LATER	2	/* not in the callback, but by CLIENT_PUT */
#define CLIENT_WRITE		1

struct client_get {
	__u64 addr;
	__u64 len;
	__u64 token;
	__u32 flags;		/* CLIENT_NO_CALLBACK, CLIENT_FREE_LATER */
	__u32 version;		/* out */
	__u32 page_size;	/* out: bytes */
	__u32 entries;		/* out */
};

struct client_map {
	__u32 version;		/* out */
	__u32 entries;		/* out */
	__u64 first;		/* out: the first address */
};

/* The CPU by physical address (READ), or the device (DMA): a part of a page */
struct client_transfer {
	__u64 offset;
	__u64 buf;
	__u32 len;		/* up to 2048 */
	__u32 flags;		/* CLIENT_WRITE */
};

#define CLIENT_GET	_IOWR(0xBF, 0, struct client_get)
#define CLIENT_PUT	_IO(0xBF, 1)
#define CLIENT_MAP	_IOWR(0xBF, 2, struct client_map)
#define CLIENT_UNMAP	_IO(0xBF, 3)
#define CLIENT_READ	_IOW(0xBF, 4, struct client_transfer)
#define CLIENT_DMA	_IOW(0xBF, 5, struct client_transfer)
/* How often the callback ran */
#define CLIENT_CALLBACKS _IO(0xBF, 6)

#endif
