#!/bin/sh
# Gets a machine to the point where the tool can be compiled and run: installs
# Debian packages that are missing, then builds the tool with Debian's cargo.
# The tool itself gets the rest (bindgen, virtme-ng, the base kernel).
#
# Writes to build/ and to the user's cache directory only, packages aside. A
# rustup on this machine is neither used nor changed.
#
# With the argument `demo` what only tests need is left out. With `tool` only the
# tool is built, by whatever cargo there is, and nothing is installed: for hosts
# that are tested and build no kernels. With `doctor` the same holds for
# build/p2p-doctor, which is static where that can be, to be copied to other hosts.
set -eu
unset TMPDIR

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hmm-p2p

# The kernel: compilers, Rust with its library source, what its scripts call.
kernel='clang-19 lld-19 llvm-19 libclang-19-dev gcc libc6-dev make git perl
	flex bison bc libelf-dev libssl-dev pahole kmod cpio rsync ccache
	rustc-web rust-web-src rustfmt-web'
# The tool, the virtual machines, and what unpacks the base.
tool='cargo-web qemu-system-x86 python3-venv xz-utils zstd
	util-linux coreutils ca-certificates'
# checkpatch.pl, for spdxcheck.py; and what else looks at the patches.
style='python3-ply python3-git codespell sparse python3-sphinx rust-web-clippy'
# RDMA in the guest, which sees these files: the library with mlx5's provider.
verbs='ibverbs-providers libibverbs-dev pkgconf'
# Tools, and rdma-core's own tests with what makes a kernel's report of theirs.
rdma='iproute2 ibverbs-utils perftest python3-pyverbs python3-tap'

packages="$kernel $tool $verbs"
[ "${1-}" = demo ] || packages="$packages $style $rdma"

die() {
	printf 'setup: %s\n' "$@" >&2
	exit 2
}

missing_packages() {
	# shellcheck disable=SC2086
	there=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $packages 2>/dev/null |
		sed -n 's/ installed$//p')
	for package in $packages; do
		case "
$there
" in
		*"
$package
"*) ;;
		*) printf ' %s' "$package" ;;
		esac
	done
}

# apt may want to remove a package that is too old for a new one: update that
# one as well rather than take it from the user.
install_packages() {
	apt="apt-get -y -q --no-install-recommends -o DPkg::Lock::Timeout=120"
	DEBIAN_FRONTEND=noninteractive
	export DEBIAN_FRONTEND
	apt-get -q -o DPkg::Lock::Timeout=120 update >&2 || return 1
	new=$1
	if is_qemu_of_backports; then
		new=$(printf '%s' "$new" | sed 's/ qemu-system-x86//')
		install_from_backports qemu-system-x86 || return 1
	fi
	# shellcheck disable=SC2086
	also=$($apt -s install $new | sed -n 's/^Remv \([^ ]*\).*/\1/p')
	# shellcheck disable=SC2086
	$apt --no-remove install $new $also >&2
}

# QEMU's packages break those of another version: where one that is installed is
# from Debian's backports, the others must be from there.
is_qemu_of_backports() {
	dpkg-query -W -f '${db:Status-Status} ${Version}\n' 'qemu-*' 2>/dev/null |
		grep -q '^installed .*~bpo' &&
		! dpkg-query -W -f '${db:Status-Status}\n' qemu-system-x86 2>/dev/null |
			grep -qx installed
}

# $1: a package. The user's own package sources stay as they are.
install_from_backports() {
	private=$cache/backports
	suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mkdir -p "$private/lists/partial" "$private/cache/archives/partial"
	archive=$(apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
		sed -n 's/^Debian|//p' | sort -u | head -n 1)
	for s in "$suite" "$suite-backports"; do
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $s main"
	done >"$private/sources.list"
	from="$apt -o Dir::Etc::sourcelist=$private/sources.list -o Dir::Etc::sourceparts=/dev/null
		-o Dir::State::Lists=$private/lists -o Dir::Cache=$private/cache
		-o APT::Sandbox::User=root -o Acquire::Languages=none"
	$from update >&2 && $from --no-remove install -t "$suite-backports" "$1" >&2
	status=$?
	rm -rf "$private"
	return $status
}

# $1: a folder with a cargo and a rustc that are new enough for the tool
is_new_enough() {
	version=$("$1/rustc" --version 2>/dev/null | sed 's/^rustc \([0-9.]*\).*/\1/')
	[ -x "$1/cargo" ] && [ -n "$version" ] &&
		printf '1.89\n%s\n' "$version" | sort -C -V
}

bin=/usr/bin
if [ "${1-}" = tool ] || [ "${1-}" = doctor ]; then
	if ! is_new_enough $bin; then
		bin=$(command -v cargo) && bin=${bin%/*} && is_new_enough "$bin" ||
			die "Rust 1.89 or newer is needed to build the tool: install rustc and cargo" \
				"from the distribution or by rustup."
	fi
elif command -v dpkg-query >/dev/null 2>&1; then
	missing=$(missing_packages)
	if [ -n "$missing" ]; then
		by_hand="apt-get install --no-install-recommends$missing"
		[ "$(id -u)" -eq 0 ] ||
			die "these packages are missing, and only root can install them:" \
				"    sudo $by_hand"
		printf 'setup: installing%s\n' "$missing" >&2
		install_packages "$missing" ||
			die "packages could not be installed (is the network there?). By hand:" \
				"    apt-get update && $by_hand"
	fi
else
	for program in clang-19 ld.lld-19 gcc make git perl flex bison bc pahole \
		depmod cpio rsync ccache python3 xz zstd qemu-system-x86_64 \
		ip rdma ib_write_bw pkg-config taskset \
		/usr/bin/cargo /usr/bin/rustc; do
		command -v "$program" >/dev/null 2>&1 ||
			die "$program not found. This is not a Debian: install what holds it, then try again."
	done
fi

mkdir -p "$root/build/tmp" "$cache"

# $1...: arguments of cargo. Explicit paths: a rustup's proxies may come first in PATH.
build() {
	CARGO_HOME=$cache/cargo RUSTC=$bin/rustc RUSTDOC=$bin/rustdoc \
		"$bin/cargo" build --quiet --locked "$@" \
		--manifest-path "$root/harness/Cargo.toml" \
		--target-dir "$root/build/harness" ||
		die "the tool could not be built. Its libraries come from the network the first time."
}

# What p2p-doctor is built for, if it can be static: musl, or a C library that has
# an archive.
static_target() {
	host=$("$bin/rustc" -vV | sed -n 's/^host: //p')
	musl=$(echo "$host" | sed 's/-gnu$/-musl/')
	if [ -d "$("$bin/rustc" --print sysroot)/lib/rustlib/$musl/lib" ]; then
		echo "$musl"
	elif echo 'int main(void) { return 0; }' |
		cc -static -x c -o "$root/build/tmp/static" - 2>/dev/null; then
		echo "$host"
	fi
}

if [ "${1-}" = doctor ]; then
	target=$(static_target)
	if [ -n "$target" ]; then
		export RUSTFLAGS='-C target-feature=+crt-static'
		build --package doctor --target "$target"
	else
		echo 'setup: p2p-doctor needs this C library: there is no static one' >&2
		build --package doctor
	fi
	ln -sfn "harness/${target:+$target/}debug/p2p-doctor" "$root/build/p2p-doctor"
	exit
fi
# On real hardware the model of a ConnectX is of no use.
if [ "${1-}" = tool ]; then
	build --package p2p
else
	build --workspace
fi
ln -sfn harness/debug/p2p "$root/build/p2p"
