//! Installs something in the cache, which threads and other clones of the repository share.

use std::fs::{File, TryLockError};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use host::paths::Paths;
use host::proc;
use host::ui::Ui;

/// Jobs run in parallel.
static THREADS: Mutex<()> = Mutex::new(());

/// Returns what `there` finds. If it finds nothing, `install` comes first, one at a time:
/// installations use the same temporary folders.
pub fn once<T>(
    paths: &Paths,
    ui: &Ui,
    there: impl Fn() -> Result<Option<T>>,
    install: impl FnOnce() -> Result<()>,
) -> Result<T> {
    if let Some(found) = there()? {
        return Ok(found);
    }
    let _threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let _clones = lock(paths, ui)?;
    // Somebody else may have installed it meanwhile.
    if let Some(found) = there()? {
        return Ok(found);
    }
    install()?;
    there()?.context("it is not where it was installed")
}

/// Takes the lock of the cache. Ends with Ctrl-C while it waits.
fn lock(paths: &Paths, ui: &Ui) -> Result<File> {
    let path = paths.cache.join("lock");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let mut has_said = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => {
                return Err(error).context(path.display().to_string());
            }
            Err(TryLockError::WouldBlock) if proc::interrupted() => bail!("interrupted"),
            Err(TryLockError::WouldBlock) => {}
        }
        if !has_said {
            ui.say("waiting for another clone, which installs something in the cache");
            has_said = true;
        }
        sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::thread;

    use super::*;

    #[test]
    fn another_clone_installs_it_first() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::within(dir.path());
        fs::create_dir_all(&paths.cache).unwrap();
        let file = paths.cache.join("tool");
        let there = || Ok(fs::read_to_string(&file).ok());
        let ui = Ui::new(false);
        let other = lock(&paths, &ui).unwrap();
        let is_mine = Cell::new(false);
        let found = thread::scope(|scope| {
            scope.spawn(|| {
                sleep(Duration::from_millis(100));
                fs::write(&file, "theirs").unwrap();
                drop(other);
            });
            once(&paths, &ui, there, || {
                is_mine.set(true);
                Ok(fs::write(&file, "mine")?)
            })
        });
        assert_eq!((found.unwrap().as_str(), is_mine.get()), ("theirs", false));
        fs::remove_file(&file).unwrap();
        let found = once(&paths, &ui, there, || Ok(fs::write(&file, "mine")?));
        assert_eq!(found.unwrap(), "mine");
        fs::remove_file(&file).unwrap();
        assert!(once(&paths, &ui, there, || Ok(())).is_err());
    }
}
