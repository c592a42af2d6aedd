/* SPDX-License-Identifier: GPL-2.0 */
/*
 * fake.h - a host whose GPUs consist of files and ioctls
 *
 * The ioctls check arguments as strictly as the drivers do, record which pages
 * moved, and fail when a test wants them to. /proc/self/pagemap shows the pages
 * that moved.
 */
#ifndef FAKE_H
#define FAKE_H

#include "../p2ptest.h"

/* A file of the host: a text, or a device */
struct fake_file {
	const char *path;
	const char *text;
	const char *driver;	/* who has the device */
	__u32 gpu_id;		/* of amdgpu: what amdkfd calls it */
};

/* Calls are numbered from 1; to open what does not exist is none */
struct fake {
	const struct fake_file *files;
	unsigned int calls;	/* ioctls, and files that were opened */
	unsigned int fail_at;	/* the first one that fails, if not 0 */
	unsigned int fail_calls; /* how many of them do */
	int fail_errno;
	unsigned long failed;	/* number of the ioctl that failed last, or */
	const char *not_opened;	/* the file that was not opened */
	const char *complaint;	/* the first argument that no driver would take */
	unsigned int objects;	/* of GEM that are not closed */
	const char *used;	/* path of the device that moved something last */
	/* What the devices have, for a test to change */
	__u64 xe_flags;
	__u32 xe_regions;
	__u32 xe_short;		/* bytes that an answer lacks */
};

extern struct fake fake;

/* From now on the library has these files; the last one has no path */
void fake_start(const struct fake_file *files);

#endif /* FAKE_H */
