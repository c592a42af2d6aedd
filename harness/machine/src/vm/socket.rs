//! Sockets in a machine's directory, whose path may be longer than a socket's address.

use std::fs::File;
use std::io::Result;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Calls `open` with a path to a file of `dir` that is short enough for a socket.
pub fn at<T>(dir: &Path, name: &str, open: impl Fn(&Path) -> Result<T>) -> Result<T> {
    let dir = File::open(dir)?;
    open(Path::new(&format!(
        "/proc/self/fd/{}/{name}",
        dir.as_raw_fd()
    )))
}
