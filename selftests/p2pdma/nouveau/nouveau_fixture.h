/* SPDX-License-Identifier: GPL-2.0 */
/*
 * nouveau_fixture.h - what tests of nouveau's device private memory share
 */
#ifndef NOUVEAU_FIXTURE_H
#define NOUVEAU_FIXTURE_H

#include "../p2p_harness.h"
#include "nouveau.h"

#include <fcntl.h>
#include <sys/mman.h>

/* A GPU of nouveau's, as nouveau_open(); a negative errno if the test is skipped */
static inline int nouveau_start(struct __test_metadata *_metadata)
{
	int fd;

	if (!p2p_start(_metadata))
		return -EPERM;
	P2P_DISRUPTIVE(return -EPERM);
	fd = nouveau_open();
	if (fd == -ENODEV)
		SKIP(return fd, "no GPU of nouveau's with SVM");
	ASSERT_LE(0, fd);
	return fd;
}

static inline void to_vram(struct __test_metadata *_metadata, int fd,
			   struct p2p_buf *buf)
{
	ASSERT_EQ(0, nouveau_to_vram(fd, buf->p, buf->len));
	ASSERT_EQ((long)buf->pages, nouveau_resident(buf->p, buf->len));
}

static inline void buf_free(struct __test_metadata *_metadata,
			    struct p2p_buf *buf)
{
	EXPECT_EQ(0, munmap(buf->p, buf->len));
}

/* What becomes of a child that finds something there, or a signal instead */
static inline int look(struct __test_metadata *_metadata, struct p2p_buf *buf,
		       __u64 seed)
{
	pid_t pid = p2p_fork_child(_metadata);
	int status = 0;

	if (!pid) {
		signal(SIGBUS, SIG_DFL);
		_exit(p2p_compare(buf->p, seed, 0, buf->len) != buf->len);
	}
	EXPECT_EQ(pid, waitpid(pid, &status, 0));
	return status;
}

#endif /* NOUVEAU_FIXTURE_H */
