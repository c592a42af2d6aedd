// SPDX-License-Identifier: GPL-2.0
/*
 * Test of p2p_harness.h: what tests change is put back, however they end
 *
 * It needs no device. It starts itself once more, with a file that stands for a
 * setting of the machine: those tests are the fixture "inner".
 */
#define _GNU_SOURCE
#include "p2p_harness.h"

#include <poll.h>

#define SETTING	"P2P_HARNESS_SETTING"

/* What the setting is before, and what the inner tests make of it */
#define BEFORE_ALL	5
#define CHANGED		"7"

FIXTURE(inner)
{
	const char *path;
};

FIXTURE_SETUP(inner)
{
	self->path = getenv(SETTING);
	if (!self->path)
		SKIP(return, "only another test starts this one");
	ASSERT_EQ(BEFORE_ALL, p2p_number_in(self->path, ""));
}

FIXTURE_TEARDOWN(inner)
{
}

TEST_F_TIMEOUT(inner, hangs, TIMEOUT_S)
{
	ASSERT_EQ(0, p2p_change(self->path, "6"));
	ASSERT_EQ(0, p2p_change(self->path, CHANGED));
	/* The end of this one has to be noticed, too */
	p2p_fork_child(_metadata);
	for (;;)
		pause();
}

TEST_F_TIMEOUT(inner, ends, TIMEOUT_S)
{
	EXPECT_EQ(0, p2p_change(self->path, CHANGED));
}

/* Shows that it ran, and so that the setting was as it had been */
TEST_F_TIMEOUT(inner, looks, TIMEOUT_S)
{
	EXPECT_EQ(0, unlink(self->path));
}

TEST_F_TIMEOUT(inner, disrupts, TIMEOUT_S)
{
	P2P_DISRUPTIVE(return);
}

FIXTURE(outer)
{
	char path[32];
	pid_t pid;
	int alive;	/* readable when all processes of the program have ended */
};

#define SELF FIXTURE_DATA(outer)

FIXTURE_SETUP(outer)
{
	int fd;

	strcpy(self->path, "/tmp/p2p-harness-XXXXXX");
	fd = mkstemp(self->path);
	ASSERT_LE(0, fd);
	ASSERT_LT(0, dprintf(fd, "%d\n", BEFORE_ALL));
	close(fd);
}

FIXTURE_TEARDOWN(outer)
{
	unlink(self->path);
}

/* Start this program with these of the inner tests */
static void start(struct __test_metadata *_metadata, SELF *self,
		  const char *first, const char *second)
{
	int alive[2], null;

	ASSERT_EQ(0, pipe(alive));
	self->pid = p2p_fork_child(_metadata);
	if (!self->pid) {
		null = open("/dev/null", O_WRONLY);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		setenv(SETTING, self->path, 1);
		execl("/proc/self/exe", "inner", "-r", first,
		      second ? "-r" : NULL, second, NULL);
		_exit(127);
	}
	close(alive[1]);
	self->alive = alive[0];
}

/* How the program ends, which all of its processes do */
static int end(struct __test_metadata *_metadata, SELF *self)
{
	struct pollfd all = { .fd = self->alive, .events = POLLIN };
	int status;

	ASSERT_EQ(self->pid, waitpid(self->pid, &status, 0));
	EXPECT_EQ(1, poll(&all, 1, 10000))
		TH_LOG("a process has been left behind");
	close(self->alive);
	return status;
}

static void wait_changed(struct __test_metadata *_metadata, SELF *self)
{
	int i;

	for (i = 0; p2p_number_in(self->path, "") != atoi(CHANGED); i++) {
		ASSERT_GT(3000, i);
		p2p_sleep_ms(10);
	}
}

TEST_F_TIMEOUT(outer, end, TIMEOUT_S)
{
	start(_metadata, self, "inner.ends", NULL);
	EXPECT_EQ(0, end(_metadata, self));
	EXPECT_EQ(BEFORE_ALL, p2p_number_in(self->path, ""));
}

/* A test that runs out of time fails, and the next one starts as if nothing were */
TEST_F_TIMEOUT(outer, time, TIMEOUT_S)
{
	ASSERT_EQ(0, setenv("P2PTEST_TIMEOUT", "2", 1));
	start(_metadata, self, "inner.hangs", "inner.looks");
	EXPECT_EQ(KSFT_FAIL << 8, end(_metadata, self));
	EXPECT_EQ(-1, access(self->path, F_OK));
}

TEST_F_TIMEOUT(outer, terminated, TIMEOUT_S)
{
	start(_metadata, self, "inner.hangs", NULL);
	wait_changed(_metadata, self);
	ASSERT_EQ(0, kill(self->pid, SIGTERM));
	EXPECT_EQ(SIGTERM, end(_metadata, self));
	EXPECT_EQ(BEFORE_ALL, p2p_number_in(self->path, ""));
}

/* Nobody can put anything back, but no test is left behind */
TEST_F_TIMEOUT(outer, killed, TIMEOUT_S)
{
	start(_metadata, self, "inner.hangs", NULL);
	wait_changed(_metadata, self);
	ASSERT_EQ(0, kill(self->pid, SIGKILL));
	EXPECT_EQ(SIGKILL, end(_metadata, self));
}

TEST_F_TIMEOUT(outer, disruptive, TIMEOUT_S)
{
	ASSERT_EQ(0, unsetenv("P2PTEST_DISRUPTIVE"));
	start(_metadata, self, "inner.disrupts", NULL);
	EXPECT_EQ(KSFT_SKIP << 8, end(_metadata, self));
	ASSERT_EQ(0, setenv("P2PTEST_DISRUPTIVE", "1", 1));
	start(_metadata, self, "inner.disrupts", NULL);
	EXPECT_EQ(0, end(_metadata, self));
}

TEST_HARNESS_MAIN
