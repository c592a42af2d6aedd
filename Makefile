# Every target is one call of the tool in harness/; `make help` lists them.

.DEFAULT_GOAL := help
.SUFFIXES:
# One run at a time in this repository, also with MAKEFLAGS=-j.
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Variables that may be given: `make demo KDIR=/path/to/linux`.
variables := KDIR O QEMU KVM CC LLVM CONFIG J ONLY TEST FAILED REPEAT RETRIES SHARD FAIL_FAST KTAP QEMU_ARGS FORCE MINUTES GENERATED SEED PERFTEST DOCTOR V
given := $(strip $(foreach v,$(.VARIABLES),$(if $(filter command%,$(origin $v)),$v)))
unknown := $(filter-out $(variables) MAKEFLAGS MAKEOVERRIDES -*-command-variables-*-,$(given))
$(if $(unknown),$(error unknown variable: $(unknown). There are: $(variables)))

# Those that only some targets take. The others mean the same to each.
takes_ONLY := build demo test list mutants bench soak check bisect shell debug
$(foreach v,TEST FAILED REPEAT RETRIES SHARD FAIL_FAST KTAP,$(eval takes_$v := test list))
takes_MINUTES := soak test mutants
takes_GENERATED := mutants
takes_SEED := soak mutants
takes_PERFTEST := hw-test
takes_DOCTOR := doctor
takes = $(or $(filter undefined,$(origin takes_$1)),$(filter $(MAKECMDGOALS),$(takes_$1)))
useless := $(strip $(foreach v,$(given),$(if $(call takes,$v),,$v)))
$(if $(useless),$(error make $(or $(MAKECMDGOALS),help) does not take $(useless)))

# $1: a variable, $2: its option. The value is quoted for the shell.
# A value counts when it was given to make, as for the kernel itself; KDIR, O,
# QEMU and LLVM also when they are in the environment.
take = $(if $(filter command% $(if $(filter KDIR O QEMU LLVM,$1),environment%),$(origin $1)),$2='$(subst ','\'',$($1))')
arguments = $(call take,KDIR,--kdir) $(call take,O,--output) \
	$(call take,QEMU,--qemu) $(call take,QEMU_ARGS,--qemu-args) $(call take,KVM,--kvm) \
	$(call take,CC,--cc) $(call take,LLVM,--llvm) $(call take,CONFIG,--config) \
	$(call take,J,--jobs) $(call take,FORCE,--force) $(if $(filter 1,$(V)),--verbose)
only = $(call take,ONLY,--only)
tests = $(only) $(call take,TEST,--test) $(call take,FAILED,--failed) \
	$(call take,REPEAT,--repeat) $(call take,RETRIES,--retries) $(call take,SHARD,--shard) \
	$(call take,MINUTES,--minutes) $(call take,FAIL_FAST,--fail-fast) $(call take,KTAP,--ktap)
# The kernel's own make is started by the tool and must not see ours.
run = unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES && \
	exec build/p2p --root '$(CURDIR)' $(arguments)
# The tool installs the packages that the target needs.
p2p = @harness/setup.sh $@ && export P2P_TARGET=$@ && $(run)

# Programs that are called leave nothing elsewhere.
export TMPDIR := $(CURDIR)/build/tmp

.PHONY: help setup fetch tree export drift build demo test list check bisect mutants coverage \
	bench soak hw-test doctor shell debug clean

help: ## list the targets
	@echo 'usage: make TARGET [VARIABLE=value ...]'
	@echo
	@sed -n 's/^\([a-z-]*\): ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r t d; do printf '  %-9s %s\n' "$$t" "$$d"; done
	@echo
	@echo '  KDIR=dir   base the series on this kernel tree (its HEAD), not on Debian'"'"'s'
	@echo '  O=dir      build the kernels in dir/plain, dir/debug, ... and not in build/'
	@echo '  QEMU=path  the qemu-system-x86_64 to use'
	@echo '  QEMU_ARGS= added to the arguments of QEMU'
	@echo '  KVM=1      use KVM in machines whose clock does not count instructions'
	@echo '  LLVM=, CC= the compiler, as for the kernel (default: gcc, or clang-19 for KASAN)'
	@echo '  CONFIG=file  options for each kernel, which win over its own'
	@echo '  J=n        jobs at a time'
	@echo '  ONLY=name  only this part of a target, e.g. ONLY=switch; * and ? are wildcards,'
	@echo '             ! excludes: ONLY='"'"'mlx5*/switch,!*-debug/*'"'"
	@echo '  TEST=name  only this test of the jobs in ONLY= (test)'
	@echo '  FAILED=1   only what failed in the last run (test)'
	@echo '  REPEAT=n   run everything n times, or until something fails (test)'
	@echo '  RETRIES=n  run a failed job up to n times again; if it then passes, it is flaky (test)'
	@echo '  FAIL_FAST=1  start nothing more after the first failure (test)'
	@echo '  KTAP=1     print the results as KTAP, too (test)'
	@echo '  SHARD=1/4  the first of four parts (test)'
	@echo '  FORCE=1    run what is cached, too (test, check, mutants, bisect)'
	@echo '  MINUTES=n  how long the stress tests of soak take; after n minutes begin no other'
	@echo '             mutant (mutants), or start nothing more, end builds, and count what is'
	@echo '             left as skipped (test)'
	@echo '  GENERATED=n  generate mutants until tests have judged n of them (mutants)'
	@echo '  SEED=n     repeat the random choices of this run of soak, or draw other mutants'
	@echo '  PERFTEST=  options of perftest that put its buffer into the GPU (hw-test)'
	@echo '  DOCTOR=    options of p2p-doctor, e.g. --json (doctor)'
	@echo '  V=1        show every command'

setup: ## install packages, and download all that later runs need
	$(p2p) setup

fetch: ## download what later runs need to the cache; they then work without a network
	$(p2p) setup

tree: ## make build/linux: the base and a commit for each patch
	$(p2p) tree

export: ## write patches/ and the mirrors from the commits in build/linux
	$(p2p) export

drift: ## fail if patches/, the tree and the mirrors differ
	$(p2p) drift

build: ## build every test kernel and the selftests, or ONLY= one kernel
	$(p2p) build $(only)

demo: ## run the main job in every topology; ends with a table
	$(p2p) demo $(only)

test: ## run everything; ends with "N passed, N failed, N skipped"
	$(p2p) test $(tests)

# It looks, and needs no packages.
list: ## list the tests that `make test` would run with the same variables
	@harness/setup.sh tool && $(run) test --list $(tests)

mutants: ## plant defects into the series; ends with which test noticed which
	$(p2p) mutants $(only) $(call take,GENERATED,--generated) $(call take,SEED,--seed) \
		$(call take,MINUTES,--minutes)

coverage: ## list the added lines that no test reaches, and why
	$(p2p) coverage

bench: ## count instructions: the series against the base, DMA in place against migration
	$(p2p) bench $(only)

soak: ## stress tests at random: MINUTES= sets how long, SEED= repeats a run
	$(p2p) soak $(only) $(call take,MINUTES,--minutes) $(call take,SEED,--seed)

check: ## ask compilers, sparse, clippy, checkpatch and others about the patches
	$(p2p) check $(only)

bisect: ## build and boot after each patch, in each configuration; takes hours
	$(p2p) bisect $(only)

# A host with such hardware need not be one that builds kernels: no packages.
hw-test: ## say what this host's GPU and NIC lack, and test them
	@harness/setup.sh tool && $(run) hw-test $(call take,PERFTEST,--perftest)

# Its status 1, 3 or 4 says what it found; that is no failure of make's.
doctor: ## say for each pair of this host's devices why peer-to-peer DMA is off
	@harness/setup.sh doctor && { build/p2p-doctor $(DOCTOR) || \
		{ s=$$?; case $$s in 1|3|4) ;; *) exit $$s ;; esac; }; }

shell: ## a shell in a virtual machine: ONLY=switch, or a job: ONLY=mlx5/switch
	$(p2p) shell $(only)

debug: ## the same, and gdb can attach to its kernel
	$(p2p) shell --debug $(only)

# Without the tool nothing was built.
clean: ## remove the built kernels and results, keep the tree and the caches
	@[ ! -x build/p2p ] || { $(run) clean; }

.DEFAULT:
	@echo "no target '$@': \`make help\` lists them" >&2; exit 64
