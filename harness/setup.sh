#!/bin/sh
# usage: harness/setup.sh [TARGET]
#
# Builds the tool. The tool itself gets the rest (bindgen, virtme-ng, the base kernel).
# It is built by the Rust in /usr/bin; if that is too old, by the one in PATH.
#
# Without an argument, the script first installs all packages (packages/need). With a
# target of make, it first installs what the tool's build needs. The tool installs the
# rest when it has understood its arguments, so that bad usage installs nothing more.
#
# With `tool`, the script only builds the tool and installs nothing: for hosts that are
# tested and build no kernels. `doctor` does the same for build/p2p-doctor, which is
# static where that can be, to be copied to other hosts.
#
# Writes to build/ and to the user's cache directory only, packages aside.
set -eu
unset TMPDIR

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

die() {
	printf 'setup: %s\n' "$@" >&2
	exit 2
}

[ -n "${XDG_CACHE_HOME:-${HOME-}}" ] || die "neither HOME nor XDG_CACHE_HOME is set."
cache=${XDG_CACHE_HOME:-${HOME-}/.cache}/hmm-p2p

# $1: a folder with a cargo and a rustc that are new enough for the tool
is_new_enough() {
	version=$("$1/rustc" --version 2>/dev/null | sed 's/^rustc \([0-9.]*\).*/\1/')
	[ -x "$1/cargo" ] && [ -n "$version" ] &&
		printf '1.89\n%s\n' "$version" | sort -C -V
}

case ${1-} in
'') "$root/harness/packages/need" all ;;
*) "$root/harness/packages/need" --tool "$1" ;;
esac

bin=/usr/bin
if ! is_new_enough $bin; then
	bin=$(command -v cargo || echo /nowhere/cargo)
	bin=${bin%/*}
	is_new_enough "$bin" ||
		die "Rust 1.89 or newer is needed to build the tool: install rustc and cargo" \
			"from the distribution or by rustup."
fi

mkdir -p "$root/build/tmp" "$cache" || die "no folder can be made there."

# $1...: arguments of cargo. Explicit paths: a rustup's proxies may come first in PATH.
run_cargo() {
	CARGO_HOME=$cache/cargo RUSTC=$bin/rustc RUSTDOC=$bin/rustdoc \
		"$bin/cargo" "$@" --quiet --locked --manifest-path "$root/harness/Cargo.toml" ||
		die "the tool could not be built. Its libraries come from the network the first time."
}

build() {
	run_cargo build "$@" --target-dir "$root/build/harness"
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
# Its own tests need more libraries than the tool does.
case ${1-} in
setup | fetch) run_cargo fetch ;;
esac
# On real hardware the model of a ConnectX is of no use.
if [ "${1-}" = tool ]; then
	build --package p2p
else
	build --workspace
fi
ln -sfn harness/debug/p2p "$root/build/p2p"
