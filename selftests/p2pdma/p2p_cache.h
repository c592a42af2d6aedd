/* SPDX-License-Identifier: GPL-2.0 */
/*
 * p2p_cache.h - a cache of registrations, as a communication library has it
 *
 * It keeps a buffer registered after a transfer, because the next one is likely
 * to use it again. When the buffers get larger than a limit altogether, it ends
 * the one that was used least recently.
 *
 * It needs no word from the kernel when memory is freed or used for something
 * else. A registration is of addresses: it finds what is there now. Nor do kept
 * registrations hold windows of a GPU's BAR, as pages in use do that.
 */
#ifndef P2P_CACHE_H
#define P2P_CACHE_H

#include "p2ptest.h"

struct p2p_cache_stats {
	unsigned long hits;
	unsigned long misses;
	unsigned long evictions;
	unsigned long revocations;	/* of what is in the cache */
};

struct p2p_cache;

/* NULL if there is no memory. @limit in bytes. */
struct p2p_cache *p2p_cache_new(const struct p2p_nic *nic, size_t limit);
/* End all registrations */
void p2p_cache_free(struct p2p_cache *cache);
/*
 * Handle of a buffer that is registered with @flags: kept from before, or new. It
 * is good until more was asked for since than the limit allows. A negative errno
 * as of p2p_nic_pin(); -E2BIG if it is larger than the limit.
 */
int p2p_cache_get(struct p2p_cache *cache, const void *addr, size_t len,
		  __u32 flags, __u32 *handle);
int p2p_cache_stats(const struct p2p_cache *cache,
		    struct p2p_cache_stats *stats);

#endif /* P2P_CACHE_H */
