// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin for QEMU's TCG: counts the instructions that a guest executes while a
 * span lasts. The programs of harness/guest/bench begin and end spans by a long
 * NOP, which means nothing to a processor.
 *
 * On exit it writes, a line each: "began SPAN TIMES", and for each block of code
 * that ran "ran SPAN ADDRESS INSTRUCTIONS".
 *
 * The declarations are those of QEMU's include/qemu/qemu-plugin.h, which Debian's
 * packages do not have.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPANS 8

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t plugin_id;
typedef void (*exec_cb)(unsigned int vcpu, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id,
					   void (*cb)(plugin_id id,
						      struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, exec_cb cb,
					  int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    exec_cb cb, int flags, void *data);
void qemu_plugin_register_atexit_cb(plugin_id id,
				    void (*cb)(plugin_id id, void *data),
				    void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *
qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t idx);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *dest,
			     size_t len);

/* Of the interface: qemu_plugin_insn_data() is as above since version 3 */
int qemu_plugin_version = 3;

struct block {
	struct block *next;
	uint64_t addr;
	uint64_t insns;
	uint64_t ran[SPANS];
};

static struct block *blocks;
static uint64_t began[SPANS];
static uintptr_t span;
static const char *out;

static void enter(unsigned int vcpu, void *data)
{
	(void)vcpu;
	span = (uintptr_t)data;
	began[span]++;
}

static void run(unsigned int vcpu, void *data)
{
	struct block *block = data;

	(void)vcpu;
	block->ran[span]++;
}

/* nopl with 5ade c0WW for a displacement; WW is the span */
static int span_of(const struct qemu_plugin_insn *insn)
{
	static const unsigned char nop[] = { 0x0f, 0x1f, 0x84, 0x00 };
	static const unsigned char magic[] = { 0xc0, 0xde, 0x5a };
	unsigned char data[8];

	if (qemu_plugin_insn_data(insn, data, sizeof(data)) != sizeof(data) ||
	    memcmp(data, nop, sizeof(nop)) ||
	    memcmp(data + 5, magic, sizeof(magic)) || data[4] >= SPANS)
		return -1;
	return data[4];
}

static void translate(plugin_id id, struct qemu_plugin_tb *tb)
{
	struct block *block = calloc(1, sizeof(*block));
	size_t i;

	(void)id;
	if (!block)
		abort();
	block->addr = qemu_plugin_tb_vaddr(tb);
	block->insns = qemu_plugin_tb_n_insns(tb);
	block->next = blocks;
	blocks = block;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, run, 0, block);
	for (i = 0; i < block->insns; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		intptr_t which = span_of(insn);

		if (which >= 0)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, enter, 0,
							       (void *)which);
	}
}

static void finish(plugin_id id, void *data)
{
	FILE *file = fopen(out, "w");
	struct block *block;
	int w;

	(void)id;
	(void)data;
	if (!file) {
		perror(out);
		return;
	}
	for (w = 1; w < SPANS; w++) {
		fprintf(file, "began %d %llu\n", w,
			(unsigned long long)began[w]);
		for (block = blocks; block; block = block->next)
			if (block->ran[w])
				fprintf(file, "ran %d %llx %llu\n", w,
					(unsigned long long)block->addr,
					(unsigned long long)(block->ran[w] *
							     block->insns));
	}
	fclose(file);
}

__attribute__((visibility("default"))) int
qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1 || strncmp(argv[0], "out=", 4))
		return 1;
	out = argv[0] + 4;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	qemu_plugin_register_atexit_cb(id, finish, NULL);
	return 0;
}
