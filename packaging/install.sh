#!/bin/sh
# Installs the `tercet` command: downloads the archive for this machine, compares its SHA-256, and puts the program
# into PREFIX/bin. Nothing is left behind if a step fails.
#
#   TERCET_BASE_URL=URL sh install.sh
#   sh install.sh --base-url URL --prefix /opt/tercet
#
# URL is a folder with `SHA256SUMS` and the archives.
set -eu

usage() {
    cat <<'END'
Usage: install.sh [--base-url URL] [--prefix DIR] [--target TRIPLE]

  --base-url URL    folder with SHA256SUMS and the archives; also TERCET_BASE_URL
  --prefix DIR      the program goes to DIR/bin; also TERCET_PREFIX; default: ~/.local
  --target TRIPLE   archive for another platform, such as x86_64-unknown-linux-musl
END
}

say() {
    printf '%s\n' "$*"
}

# fail MESSAGE REMEDY
fail() {
    printf 'error: %s\n' "$1" >&2
    if [ $# -gt 1 ]; then
        printf '  remedy: %s\n' "$2" >&2
    fi
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# The target triple of this machine.
find_target() {
    system=$(uname -s)
    machine=$(uname -m)
    case $machine in
        x86_64 | amd64) machine=x86_64 ;;
        aarch64 | arm64) machine=aarch64 ;;
        *) fail "there is no archive for processors of type $machine" "build from source: cargo install" ;;
    esac
    case $system in
        Linux)
            # The loader of glibc; systems with musl do not have it.
            case $machine in
                x86_64) loader=/lib64/ld-linux-x86-64.so.2 ;;
                *) loader=/lib/ld-linux-aarch64.so.1 ;;
            esac
            if [ -e "$loader" ]; then
                printf '%s-unknown-linux-gnu' "$machine"
            else
                printf '%s-unknown-linux-musl' "$machine"
            fi
            ;;
        Darwin) printf '%s-apple-darwin' "$machine" ;;
        *) fail "there is no archive for $system" "on Windows, use install.ps1" ;;
    esac
}

# download NAME FILE
download() {
    if has curl; then
        curl --fail --silent --show-error --location --retry 2 --output "$2" "$base/$1"
    elif has wget; then
        wget -q -O "$2" "$base/$1"
    else
        fail "neither curl nor wget is installed" "install one of them"
    fi || fail "cannot download $base/$1" "check the URL and the network, then run this again"
}

# sha256 FILE
sha256() {
    if has sha256sum; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif has shasum; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    elif has openssl; then
        openssl dgst -sha256 "$1" | sed 's/^.* //'
    else
        fail "no program computes SHA-256" "install sha256sum, shasum or openssl"
    fi
}

# find_archive FILE ENDING: the first line for the target in a list of checksums. Other lines are not ours.
find_archive() {
    while IFS= read -r line; do
        archive=${line#* }
        archive=${archive#[ *]}
        expected=${line%% *}
        case $archive in *[!0-9A-Za-z._+-]*) continue ;; esac
        case $expected in *[!0-9a-f]*) continue ;; esac
        [ ${#expected} -eq 64 ] || continue
        case $archive in tercet-*-"$target"."$2") return ;; esac
    done <"$1"
    return 1
}

main() {
    # `cargo xtask dist` replaces the default by the folder of the release.
    base=${TERCET_BASE_URL:-@BASE_URL@}
    prefix=${TERCET_PREFIX:-${HOME:-}/.local}
    target=
    while [ $# -gt 0 ]; do
        case $1 in
            --help | -h)
                usage
                exit 0
                ;;
            --base-url | --prefix | --target)
                [ $# -gt 1 ] || fail "$1 needs a value"
                case $1 in
                    --base-url) base=$2 ;;
                    --prefix) prefix=$2 ;;
                    *) target=$2 ;;
                esac
                shift 2
                ;;
            *)
                usage >&2
                fail "$1 is not an option"
                ;;
        esac
    done
    case $base in
        '' | @*) fail "the URL of the archives is not known" "set TERCET_BASE_URL or use --base-url" ;;
        *) base=${base%/} ;;
    esac
    case $prefix in
        /.local) fail "HOME is not set" "use --prefix DIR" ;;
        /*) ;;
        *) prefix=$(pwd)/$prefix ;;
    esac
    [ -n "$target" ] || target=$(find_target)
    bin=$prefix/bin
    has tar || fail "tar is not installed" "install tar and gzip"

    # The download happens beside the destination, so that the last step is one rename.
    made=
    [ -d "$bin" ] || made=$bin
    mkdir -p "$bin" 2>/dev/null || fail "cannot create $bin" "use --prefix DIR with a folder that you may write"
    work=$(mktemp -d "$bin/.tercet-install-XXXXXX" 2>/dev/null) ||
        fail "cannot write to $bin" "use --prefix DIR with a folder that you may write"
    # An empty folder that this script made goes too; a folder with the program stays.
    trap 'rm -rf "$work"; [ -z "$made" ] || rmdir "$made" 2>/dev/null || true' EXIT
    trap 'exit 130' INT HUP TERM

    download SHA256SUMS "$work/sums"
    # An archive by xz is a quarter smaller.
    { has xz && find_archive "$work/sums" tar.xz; } || find_archive "$work/sums" tar.gz ||
        fail "$base has no archive for $target" "build from source, or choose another --target"
    say "downloading $base/$archive"
    download "$archive" "$work/archive"
    found=$(sha256 "$work/archive")
    [ "$found" = "$expected" ] || fail \
        "$archive has SHA-256 ${found:-none}, expected $expected; nothing was installed" \
        "run this again; if the digest still differs, do not use this URL"
    say "SHA-256 is as listed: $found"

    folder=${archive%.tar.?z}
    case $archive in
        *.xz) xz -dc "$work/archive" | tar -xf - -C "$work" "$folder/tercet" ;;
        *) tar -xzf "$work/archive" -C "$work" "$folder/tercet" ;;
    esac || fail "cannot unpack $archive into $work" "check that the disk has 100 MB of free space"
    program=$work/$folder/tercet
    chmod 755 "$program"
    version=$("$program" --version 2>"$work/reason") || fail \
        "the program does not start here: $(cat "$work/reason"); nothing was installed" \
        "choose another --target, for example one that ends in musl"
    mv -f "$program" "$bin/tercet" || fail "cannot write $bin/tercet" "use --prefix DIR"
    say "installed $version"
    say "  as $bin/tercet"
    case :${PATH:-}: in
        *:"$bin":*) ;;
        *) say "  note: $bin is not on the PATH; add it: export PATH=\"$bin:\$PATH\"" ;;
    esac
    say "  remove it with: rm $bin/tercet"
}

# A download of this script that was cut off does nothing, because the call is its last line.
main "$@"
