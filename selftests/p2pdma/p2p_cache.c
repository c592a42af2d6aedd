// SPDX-License-Identifier: GPL-2.0
/*
 * A cache of registrations: a list, the most recently used in front. A library
 * with many buffers would have a tree beside it.
 */
#include "p2p_cache.h"

#include <errno.h>
#include <stdlib.h>

struct entry {
	struct entry *next;
	const void *addr;
	size_t len;
	__u32 flags;
	__u32 handle;
};

struct p2p_cache {
	const struct p2p_nic *nic;
	struct entry *first;
	size_t bytes, limit;
	struct p2p_cache_stats stats;
};

struct p2p_cache *p2p_cache_new(const struct p2p_nic *nic, size_t limit)
{
	struct p2p_cache *cache = calloc(1, sizeof(*cache));

	if (cache) {
		cache->nic = nic;
		cache->limit = limit;
	}
	return cache;
}

/* End the last one of the list; false if there is none */
static bool evict(struct p2p_cache *cache)
{
	struct entry **last = &cache->first, *entry;

	if (!*last)
		return false;
	while ((*last)->next)
		last = &(*last)->next;
	entry = *last;
	*last = NULL;
	p2p_nic_unpin(cache->nic, entry->handle);
	cache->bytes -= entry->len;
	free(entry);
	return true;
}

void p2p_cache_free(struct p2p_cache *cache)
{
	while (evict(cache))
		;
	free(cache);
}

static struct entry *find(struct p2p_cache *cache, const void *addr,
			  size_t len, __u32 flags)
{
	struct entry **at, *entry;

	for (at = &cache->first; (entry = *at); at = &entry->next) {
		if (entry->addr == addr && entry->len == len &&
		    entry->flags == flags) {
			*at = entry->next;
			return entry;
		}
	}
	return NULL;
}

int p2p_cache_get(struct p2p_cache *cache, const void *addr, size_t len,
		  __u32 flags, __u32 *handle)
{
	struct entry *entry = find(cache, addr, len, flags);
	int ret;

	if (entry) {
		cache->stats.hits++;
	} else {
		if (len > cache->limit)
			return -E2BIG;
		while (cache->bytes + len > cache->limit && evict(cache))
			cache->stats.evictions++;
		entry = malloc(sizeof(*entry));
		if (!entry)
			return -ENOMEM;
		/* Maybe others take what there is: give back what is idle */
		do {
			ret = p2p_nic_pin(cache->nic, addr, len, flags,
					  &entry->handle);
		} while (ret == -ENOMEM && evict(cache) &&
			 ++cache->stats.evictions);
		if (ret) {
			free(entry);
			return ret;
		}
		entry->addr = addr;
		entry->len = len;
		entry->flags = flags;
		cache->bytes += len;
		cache->stats.misses++;
	}
	entry->next = cache->first;
	cache->first = entry;
	*handle = entry->handle;
	return 0;
}

int p2p_cache_stats(const struct p2p_cache *cache,
		    struct p2p_cache_stats *stats)
{
	struct p2ptest_nic_pinned pinned;
	const struct entry *entry;

	*stats = cache->stats;
	for (entry = cache->first; entry; entry = entry->next) {
		int ret = p2p_nic_pinned(cache->nic, entry->handle, &pinned,
					 NULL);

		if (ret)
			return ret;
		stats->revocations += pinned.revocations;
	}
	return 0;
}
